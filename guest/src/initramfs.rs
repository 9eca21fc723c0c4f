//! The guest's root folder: busybox, the programs under test, the modules that tests load, and `init`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::newc::{self, Builder, ModeFileType};

/// Modules that tests load by name; their dependencies are added.
const MODULES: [&str; 17] = [
    "vfio-pci",
    "vfio_iommu_type1",
    "uio_pci_generic",
    "e1000e",
    "igb",
    "ixgbe",
    "ixgbevf",
    "vmxnet3",
    "8021q",
    "sit",
    "ip_gre",
    "virtio_net",
    "virtio_pci",
    "af_packet",
    "sch_netem",
    "tun",
    "veth",
];

/// Packs the root folder. `kernel` is an unpacked kernel package, with or without modules. `programs` and `others`
/// (programs of the host) go to `/bin`, with their libraries.
pub fn pack(kernel: &Path, programs: &[PathBuf], others: &[String]) -> Vec<u8> {
    let mut archive = Archive { bytes: Vec::new(), folders: BTreeSet::new(), count: 0 };
    archive.file("init", &fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/init")).expect("guest/init"));
    archive.file("bin/busybox", &fs::read(find("busybox")).expect("busybox-static is installed by guest/prepare"));
    let mut libraries = BTreeSet::new();
    let mut add = |archive: &mut Archive, place: &str, file: &Path| {
        archive.file(place, &fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
        let output = Command::new("ldd").arg(file).output().expect("ldd");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        libraries.extend(output.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_string));
    };
    for program in programs {
        let name = program.file_name().expect("a file").to_string_lossy();
        add(&mut archive, &format!("bin/{name}"), program);
    }
    for name in others {
        // An absolute path stays the same in the guest.
        match name.strip_prefix('/') {
            Some(place) => add(&mut archive, place, Path::new(name)),
            None => add(&mut archive, &format!("bin/{name}"), &find(name)),
        }
    }
    // The C library loads libgcc_s at run time to end a thread, so a program's list of libraries lacks it.
    let folders: BTreeSet<_> = libraries.iter().filter_map(|library| Path::new(library).parent()).collect();
    let unwinder: Vec<_> =
        folders.iter().map(|folder| folder.join("libgcc_s.so.1")).filter(|file| file.exists()).collect();
    libraries.extend(unwinder.iter().map(|file| file.to_string_lossy().into_owned()));
    for library in libraries {
        archive.file(library.trim_start_matches('/'), &fs::read(&library).expect("a library"));
    }
    if let Some(release) = fs::read_dir(kernel.join("lib/modules")).ok().and_then(|mut folder| folder.next()) {
        modules(&mut archive, &release.expect("a folder").path());
    }
    newc::trailer(&mut archive.bytes).expect("writing to memory");
    archive.bytes
}

struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    count: u32,
}

impl Archive {
    /// Adds an executable file, and the folders above it.
    fn file(&mut self, path: &str, bytes: &[u8]) {
        let above = path.match_indices('/').map(|(at, _)| path[..at].to_string());
        for folder in above.collect::<Vec<_>>() {
            if self.folders.insert(folder.clone()) {
                self.entry(&folder, ModeFileType::Directory, &[]);
            }
        }
        self.entry(path, ModeFileType::Regular, bytes);
    }

    fn entry(&mut self, path: &str, kind: ModeFileType, bytes: &[u8]) {
        self.count += 1;
        let entry = Builder::new(path).ino(self.count).nlink(1).mode(0o755).set_mode_file_type(kind);
        let mut writer = entry.write(&mut self.bytes, bytes.len() as u32);
        std::io::Write::write_all(&mut writer, bytes).expect("writing to memory");
        writer.finish().expect("writing to memory");
    }
}

/// Adds modules and the list of their dependencies, uncompressed, for busybox's modprobe.
fn modules(archive: &mut Archive, folder: &Path) {
    let list = fs::read_to_string(folder.join("modules.dep")).expect("guest/prepare runs depmod");
    let release = folder.file_name().expect("a folder").to_string_lossy().into_owned();
    let name = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split(".ko").next().unwrap_or_default().replace('-', "_")
    };
    let lines: Vec<(&str, Vec<&str>)> = list
        .lines()
        .filter_map(|line| line.split_once(": ").or(line.strip_suffix(':').map(|l| (l, ""))))
        .map(|(path, needs)| (path, needs.split_whitespace().collect()))
        .collect();
    let mut wanted: BTreeSet<&str> = BTreeSet::new();
    let mut dependencies = String::new();
    for module in MODULES {
        // Drivers built into the kernel are not in the list.
        let Some((path, needs)) = lines.iter().find(|(path, _)| name(path) == module.replace('-', "_")) else {
            continue;
        };
        wanted.insert(path);
        wanted.extend(needs);
    }
    for (path, needs) in lines.iter().filter(|(path, _)| wanted.contains(path)) {
        let plain = |path: &str| path.trim_end_matches(".xz").to_string();
        let needs: Vec<String> = needs.iter().map(|path| plain(path)).collect();
        dependencies += &format!("{}: {}\n", plain(path), needs.join(" "));
        let bytes = match path.ends_with(".xz") {
            true => Command::new("xz").arg("-dc").arg(folder.join(path)).output().expect("xz").stdout,
            false => fs::read(folder.join(path)).expect("a module"),
        };
        archive.file(&format!("lib/modules/{release}/{}", plain(path)), &bytes);
    }
    archive.file(&format!("lib/modules/{release}/modules.dep"), dependencies.as_bytes());
    // A driver may be a module of one kernel and built into another.
    let built_in = fs::read(folder.join("modules.builtin")).unwrap_or_default();
    archive.file(&format!("lib/modules/{release}/modules.builtin"), &built_in);
}

/// Returns the path of a command.
fn find(command: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').map(|folder| Path::new(folder).join(command)).find(|file| file.exists()).unwrap_or_default()
}
