//! Data that crosses a network in both directions over TCP.

/// Returns the mebibytes that cross a network in each direction: 4, or the environment variable `LINERATE_MIB`, for
/// example 1024 for manual runs.
pub fn mebibytes() -> usize {
    std::env::var("LINERATE_MIB").map_or(4, |count| count.parse().expect("LINERATE_MIB is a number"))
}

/// Returns the words of a program that exchanges [`mebibytes`] of random data with its peer. The `server` prints
/// `listening`, and receives first; the `client` connects to it. Both print the SHA-256 of the data from the server, and
/// of the data from the client.
pub fn exchange(role: &str, address: &str) -> [String; 6] {
    ["python3", "-c", EXCHANGE, role, address, &mebibytes().to_string()].map(String::from)
}

const EXCHANGE: &str = r#"
import hashlib, os, socket, sys
role, address, total = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
def send(s):
    sum = hashlib.sha256(); left = total
    while left:
        block = os.urandom(min(left, 1 << 16)); left -= len(block); sum.update(block); s.sendall(block)
    return sum.hexdigest()
def receive(s):
    sum = hashlib.sha256(); left = total
    while left:
        block = s.recv(1 << 16)
        if not block: raise SystemExit(f'{left} bytes are missing')
        left -= len(block); sum.update(block)
    return sum.hexdigest()
if role == 'server':
    listener = socket.create_server((address, 7000)); print('listening', flush=True)
    s, _ = listener.accept()
    s.settimeout(120)
    got = receive(s); sent = send(s)
else:
    for attempt in range(100):
        try: s = socket.create_connection((address, 7000), 120); break
        except OSError as error: last = error
    else: raise SystemExit(last)
    sent = send(s); got = receive(s)
print(sent if role == 'server' else got); print(got if role == 'server' else sent)
"#;
