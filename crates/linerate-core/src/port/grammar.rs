//! Parts of port names that do not depend on the kind: escapes, numbers, pipes, switches.

/// The characters that have a meaning in port names, besides control characters.
const SPECIAL: [char; 9] = ['%', '?', '&', ';', '{', '}', '+', '^', '*'];

/// Returns an interface's name or a path as it is written in a port name: each byte of a character with a meaning there
/// is a `%` and two hexadecimal digits, as in URLs.
///
/// ```
/// use linerate::port::escaped;
///
/// let name = format!("packet:{}", escaped("lab?1"));
/// assert_eq!(name, "packet:lab%3F1");
/// assert_eq!(linerate::parse(&name)?.interface(), Some("lab?1"));
/// # Ok::<(), linerate::Error>(())
/// ```
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match SPECIAL.contains(&c) || c.is_control() {
            true => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escaped += &format!("%{byte:02X}")),
            false => escaped.push(c),
        }
    }
    escaped
}

/// Reverses [`escaped`]; a `%` without two hexadecimal digits is itself. Returns `None` if the result is not UTF-8.
pub(super) fn unescaped(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<2>().filter(|_| *first == b'%').and_then(|digits| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some(digit(digits[0])? << 4 | digit(digits[1])?)
        });
        bytes.push(digits.map_or(*first, |byte| byte as u8));
        rest = if digits.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

/// Parses a count: digits with an optional fraction, followed by `k`, `K`, `M` or `G`, or by an exponent. Returns
/// `None` for other text, or if the value is not an integer.
///
/// ```
/// use linerate::port::count;
/// assert_eq!((count("64"), count("1M"), count("1.5k"), count("1.5")), (Some(64), Some(1_000_000), Some(1500), None));
/// assert_eq!((count("1e6"), count("1.5e3"), count("1e-1")), (Some(1_000_000), Some(1500), None));
/// ```
pub fn count(text: &str) -> Option<u64> {
    if text.contains(['e', 'E']) && text.starts_with(|first: char| first.is_ascii_digit()) {
        let value: f64 = text.parse().ok()?;
        return ((0.0..1e19).contains(&value) && value.fract() == 0.0).then_some(value as u64);
    }
    let (digits, zeros) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 3),
        b'M' => (&text[..text.len() - 1], 6),
        b'G' => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let rest = 10u64.checked_pow(u32::checked_sub(zeros, fraction.len() as u32)?)?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? * rest };
    whole.parse::<u64>().ok()?.checked_mul(10u64.pow(zeros))?.checked_add(fraction)
}

/// Returns whether a name is that of a pipe's end.
pub fn is_pipe(name: &str) -> bool {
    name.contains(['{', '}'])
}

/// Returns whether a name is that of a switch, or of a port of one (netmap(4)).
///
/// ```
/// use linerate::port::is_vale;
///
/// assert!(is_vale("vale0") && is_vale("vale0:a") && !is_vale("eth0"));
/// ```
pub fn is_vale(name: &str) -> bool {
    name.starts_with("vale")
}

/// Splits `valeS:P` into the names of the switch and of its port; `None` for other names.
///
/// ```
/// use linerate::port::switch_and_port;
///
/// assert_eq!(switch_and_port("vale0:sim:1"), Some(("vale0", "sim:1")));
/// ```
pub fn switch_and_port(name: &str) -> Option<(&str, &str)> {
    name.split_once(':').filter(|(switch, _)| is_vale(switch))
}

/// Returns the word that a misspelled `text` probably means.
pub(super) fn nearest<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    let distance = |word: &&str| strsim::damerau_levenshtein(text, word);
    words.iter().copied().filter(|word| distance(word) <= 1 + word.len() / 4).min_by_key(distance)
}
