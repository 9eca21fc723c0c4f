//! Sets the entry point at which the dynamic loader starts the library as a server (`src/server.rs`).

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-e,linerate_netmap_start");
}
