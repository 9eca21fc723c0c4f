//! Gives the object libpcap's name: programs that are linked with libpcap, or that open it by name, get this one.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
