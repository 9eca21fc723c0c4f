//! Gives this library libpcap's soname, so that programs that link with libpcap or open it by name get this library.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
