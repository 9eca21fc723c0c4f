//! The kernel's types (BTF; kernel documentation bpf/btf.rst): finding the numbers of its functions, by which a program
//! calls them.

/// The types of the kernel itself, without its modules.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xEB9F;
/// The lengths of `struct btf_type` and of the fixed part of `struct btf_header`.
const TYPE: usize = 12;
const HEADER: usize = 24;
const FUNCTION: u32 = 12;

/// Returns the number of each function; `None` for functions that the types do not have. Malformed types have no
/// functions after the first error.
pub fn functions<const N: usize>(btf: &[u8], names: [&str; N]) -> [Option<u32>; N] {
    let mut numbers = [None; N];
    let _ = find(btf, names, &mut numbers);
    numbers
}

/// Returns `None` if the types are malformed.
fn find<const N: usize>(btf: &[u8], names: [&str; N], numbers: &mut [Option<u32>; N]) -> Option<()> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let header = btf.get(..HEADER)?;
    if header[..2] != MAGIC.to_ne_bytes() {
        return None;
    }
    // A part's offset is from the end of the header, whose length may grow.
    let data = btf.get(word(header, 4)? as usize..)?;
    let part = |at: usize| data.get(word(header, at)? as usize..)?.get(..word(header, at + 4)? as usize);
    let (mut types, strings) = (part(8)?, part(16)?);
    let is_named = |offset: u32, name: &str| {
        let text = strings.get(offset as usize..).and_then(|text| text.strip_prefix(name.as_bytes()));
        text.is_some_and(|rest| rest.first() == Some(&0))
    };
    // Number 0 is `void`, which has no entry.
    for number in 1u32.. {
        if types.is_empty() {
            break;
        }
        let (name, info) = (word(types, 0)?, word(types, 4)?);
        if info >> 24 & 0x1F == FUNCTION {
            let wanted = names.iter().position(|wanted| is_named(name, wanted));
            wanted.into_iter().for_each(|n| numbers[n] = Some(number));
        }
        types = types.get(TYPE + rest_of(info)?..)?;
    }
    Some(())
}

/// Returns the length of the data after a type; `None` for unknown kinds.
fn rest_of(info: u32) -> Option<usize> {
    let count = (info & 0xFFFF) as usize;
    match info >> 24 & 0x1F {
        1 | 14 | 17 => Some(4),              // integer, variable, declaration's tag
        3 => Some(12),                       // array
        4 | 5 | 15 | 19 => Some(count * 12), // structure, union, section, 64-bit enumeration
        6 | 13 => Some(count * 8),           // enumeration, function's prototype
        2 | 7..=12 | 16 | 18 => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 3] = ["first", "second", "absent"];

    /// Returns types of all kinds, then the function `first`, and `second` after a variable and a prototype of that
    /// name.
    fn kernel() -> Vec<u8> {
        let strings = b"\0second\0first\0firstborn\0";
        let (second, first, firstborn) = (1, 8, 14);
        let mut types: Vec<u32> = Vec::new();
        let mut add = |name: u32, kind: u32, count: u32, rest: usize| {
            types.extend([name, kind << 24 | count, 0]);
            types.extend(vec![kind << 24; rest]);
        };
        let others: [(u32, u32, usize); 17] = [
            (1, 0, 1),
            (2, 0, 0),
            (3, 0, 3),
            (4, 2, 6),
            (5, 1, 3),
            (6, 3, 6),
            (7, 0, 0),
            (8, 0, 0),
            (9, 0, 0),
            (10, 0, 0),
            (11, 0, 0),
            (13, 2, 4),
            (14, 0, 1),
            (15, 2, 6),
            (16, 0, 0),
            (17, 0, 1),
            (18, 0, 0),
        ];
        for (kind, count, rest) in others {
            add(second, kind, count, rest);
        }
        add(0, 19, 1, 3);
        add(firstborn, 12, 0, 0); // 19: only begins like a name that is wanted
        add(first, 12, 1, 0); // 20
        add(second, 14, 0, 1);
        add(second, 12, 2, 0); // 22
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // A header with 8 more bytes than this version has.
        let header = [32, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let header = header.iter().flat_map(|word| word.to_ne_bytes());
        let mut btf = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        btf.extend(header.chain([0; 8]).chain(types).chain(*strings));
        btf
    }

    #[test]
    fn functions_have_their_numbers() {
        assert_eq!(functions(&kernel(), NAMES), [Some(20), Some(22), None]);
    }

    #[test]
    fn malformed_types_have_no_functions() {
        let btf = kernel();
        let strings = btf.len() - 24;
        for len in 0..strings {
            assert_eq!(functions(&btf[..len], NAMES), [None; 3], "{len}");
        }
        for (at, value) in [(0, 0), (4, u32::MAX), (8, u32::MAX), (12, u32::MAX), (16, u32::MAX), (20, u32::MAX)] {
            let mut bad = btf.clone();
            bad[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            assert_eq!(functions(&bad, NAMES), [None; 3], "{at}");
        }
        // An unknown kind: the types after it cannot be found.
        let mut bad = btf.clone();
        bad[32 + 7] = 20;
        assert_eq!(functions(&bad, NAMES), [None; 3]);
        proptest!(|(changes in prop::collection::vec((0..btf.len(), any::<u8>()), 1..20))| {
            let mut bad = btf.clone();
            changes.iter().for_each(|(at, byte)| bad[*at] = *byte);
            functions(&bad, NAMES);
        });
    }
}
