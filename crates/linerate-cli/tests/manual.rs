//! The manual pages and the completions, checked with groff and bash.

mod kit;

use std::process::{Command, Stdio};

use kit::{Folder, OutputTimeout, expect, linerate, text};

/// Returns the names of the commands, as listed in the help.
fn commands() -> Vec<String> {
    let help = text(&expect(0, &mut linerate(&["--help"])).stdout);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_string)).filter(|name| name != "help").collect()
}

/// Returns a page as groff shows it. groff must have no complaint.
fn formatted(page: &str) -> String {
    let mut groff = Command::new("groff");
    let output =
        groff.args(["-man", "-Kutf8", "-Tutf8", "-ww", "-P-cbou", page]).stdin(Stdio::null()).output_in_time().unwrap();
    assert_eq!(text(&output.stderr), "", "{page}");
    text(&output.stdout)
}

#[test]
fn each_command_has_a_page_with_its_options() {
    let folder = Folder::new("manual");
    let pages = folder.path("man/man1");
    expect(0, &mut linerate(&["man", &pages]));
    let commands = commands();
    assert!(commands.len() > 15, "{commands:?}");
    for name in &commands {
        let page = format!("{pages}/linerate-{name}.1");
        let shown = formatted(&page);
        let help = text(&expect(0, &mut linerate(&[name, "--help"])).stdout);
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        for option in options.map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())) {
            assert!(shown.contains(option.split(['=', '[']).next().unwrap()), "{page}: {option}\n{shown}");
        }
    }
    assert!(std::fs::exists(format!("{pages}/linerate.1")).unwrap());
    let all = std::fs::read_dir(&pages).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    let of_help: Vec<_> = all.filter(|name| name.contains("-help")).collect();
    assert!(of_help.is_empty(), "{of_help:?}");
}

/// groff shows the sections that man-pages(7) asks for. Examples are not wrapped and can be copied to a shell.
#[test]
fn pages_have_readable_examples_and_refer_to_others() {
    let folder = Folder::new("manual-sections");
    let pages = folder.path("man1");
    expect(0, &mut linerate(&["man", &pages]));
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    for entry in std::fs::read_dir(&pages).unwrap() {
        let page = entry.unwrap().path().into_os_string().into_string().unwrap();
        let shown = formatted(&page);
        let section = |title: &str| -> Vec<&str> {
            let lines = shown.lines().skip_while(|line| *line != title).skip(1);
            lines.take_while(|line| line.is_empty() || line.starts_with(' ')).map(str::trim).collect()
        };
        assert!(section("EXTRA").is_empty(), "{page}:\n{shown}");
        let status = section("EXIT STATUS").join(" ");
        assert!(status.contains("0      Success.") && status.contains("2      Wrong usage"), "{page}: {status}");

        let examples = section("EXAMPLES").join("\n").replace(" \\\n", " ");
        assert!(!examples.is_empty() || page.ends_with("linerate-ports.1"), "{page}:\n{shown}");
        for line in examples.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(line.starts_with("linerate ") && line.is_ascii(), "{page}: {line:?}");
        }
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{page}:\n{shown}");

        let see_also = section("SEE ALSO").join(" ");
        for name in see_also.split_whitespace().filter_map(|word| word.split_once("(1)")) {
            assert!(std::fs::exists(format!("{pages}/{}.1", name.0)).unwrap(), "{page}: {see_also}");
        }
        let file = see_also.split_whitespace().find_map(|word| word.strip_prefix("docs/")).expect(&see_also);
        assert!(std::fs::exists(format!("{docs}/{file}")).unwrap(), "{page}: {see_also}");
    }
    let fwd = formatted(&format!("{pages}/linerate-fwd.1"));
    assert!(
        fwd.contains("       # between two cards\n       linerate fwd 0000:03:00.0 0000:03:00.1 --queues 4\n"),
        "{fwd}"
    );
    assert!(fwd.contains("       linerate(1), linerate-filter(1), linerate-latency(1)"), "{fwd}");
    let ports = formatted(&format!("{pages}/linerate-ports.1"));
    assert!(ports.contains("PORT NAMES\n") && ports.contains("       vale0:a"), "{ports}");
    let rfc2544 = formatted(&format!("{pages}/linerate-rfc2544.1"));
    assert!(rfc2544.contains("64,1518 \\\n           --seconds 2 --only throughput,latency\n"), "{rfc2544}");
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let folder = Folder::new("no-manual");
    std::fs::write(folder.path("file"), "").unwrap();
    let said = text(&expect(1, &mut linerate(&["man", &folder.path("file/man1")])).stderr);
    assert!(said.contains("file/man1") && said.contains("linerate man FOLDER"), "{said}");
}

#[test]
fn shells_complete_commands_and_options() {
    let script = text(&expect(0, &mut linerate(&["completions", "bash"])).stdout);
    let complete = |words: &str, at: usize| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={at}; _linerate linerate \"${{COMP_WORDS[{at}]}}\" \
             \"${{COMP_WORDS[{at} - 1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output_in_time().unwrap();
        text(&output.stdout).split_whitespace().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(complete("linerate f", 1), ["fwd", "filter"]);
    assert_eq!(complete("linerate sink --js", 2), ["--json"]);
    assert_eq!(complete("linerate switch li", 2), ["list"]);
    assert_eq!(complete("linerate sink vh", 2), ["vhost:"]);
    // One for each argument.
    assert_eq!(complete("linerate fwd sim:0 fa", 3), ["faulty:", "faulty:"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = text(&expect(0, &mut linerate(&["completions", shell])).stdout);
        assert!(commands().iter().all(|name| script.contains(name.as_str())), "{shell}");
    }
}
