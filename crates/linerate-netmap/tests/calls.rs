//! Tests the replaced functions of the C library as programs use them (`calls.c`): with threads, forks and
//! cancellation, and with invalid pointers and descriptors.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use kit::{OutputTimeout, Timely, World, end_of, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[allow(dead_code)] // each test uses only a part
mod kit;

/// Runs a case of the program, with ports served by this process.
#[track_caller]
fn fine(words: &str) {
    let world = World::served(0o600);
    let output = world.calls(words).output_in_time().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"fine\n", "{words}: {} {said}", output.status);
}

#[test]
fn a_thread_that_times_out_leaves_the_others_their_wakeup() {
    fine("wakeup valeC1:b valeC1:a");
}

#[test]
fn every_thread_that_waits_for_a_port_is_woken() {
    fine("wakeups valeC2:b valeC2:a");
}

/// Monitors start and stop, so that the pipe's memory for copies is opened and closed inside epoll_wait(2).
#[test]
fn epoll_wait_does_not_wait_for_itself() {
    let world = World::served(0o600);
    let mut waiting = world.calls("epoll w{1").stdin(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) =
        (waiting.stdin.take().unwrap(), BufReader::new(Timely(waiting.stdout.take().unwrap())));
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "ready\n");
    for round in 0..20 {
        let _monitor = world.start("open w{1/t");
        input.write_all(b"\n").unwrap();
        // SIGALRM ends a hanging call.
        assert_eq!(line(), "waited\n", "in round {round}");
    }
    drop(input);
    assert_eq!(line(), "fine\n");
    end_of(&mut waiting);
}

#[test]
fn a_child_of_a_program_with_threads_can_close() {
    fine("forks valeC3:a/x");
}

#[test]
fn a_child_of_a_program_whose_threads_use_epoll_can_use_it() {
    fine("forks-epoll valeC22:a/x");
}

#[test]
fn a_parent_keeps_numbers_that_its_child_closes() {
    fine("vforks valeC4:a/x");
}

#[test]
fn a_child_opens_ports_of_its_own() {
    fine("child-opens valeC16:a valeC16:b");
}

#[test]
fn a_descriptor_means_the_same_in_a_program_that_is_executed() {
    fine("executes valeC17:a valeC17:b");
    fine("executes x{17 x}17");
}

#[test]
fn a_descriptor_means_the_same_in_a_process_that_it_is_passed_to() {
    fine("passes valeC18:a valeC18:b");
    fine("passes x{18 x}18");
}

#[test]
fn frames_of_a_program_and_its_children_arrive_once() {
    fine("shared-by-children x{19 x}19");
}

#[test]
fn an_epoll_that_waits_for_an_epoll_is_woken() {
    fine("nested valeC20:a valeC20:b");
    fine("nested x{20 x}20");
}

#[test]
fn stat_and_access_find_the_device() {
    fine("looks");
}

#[test]
fn a_number_closed_in_any_way_is_free() {
    fine("closes valeC5:a/x");
}

#[test]
fn a_program_may_close_all_numbers() {
    fine("closes-all valeC14:b valeC14:a");
}

#[test]
fn threads_open_and_close_ports_concurrently() {
    fine("churn valeC15:a/x valeC15:b/x valeC15:c/x valeC15:d/x");
}

#[test]
fn threads_that_wait_for_other_files_can_be_cancelled() {
    fine("cancel");
}

#[test]
fn threads_that_wait_for_ports_can_be_cancelled() {
    fine("cancel-ports valeC6:b valeC6:a");
}

#[test]
fn threads_can_be_cancelled_at_any_instruction() {
    fine("cancel-anywhere valeC21:b valeC21:a");
}

#[test]
fn a_timeout_may_be_longer_than_the_clock() {
    fine("timeouts valeC7:a");
}

#[test]
fn descriptors_are_duplicated_and_replaced_by_every_call() {
    fine("duplicated valeC8:a/x");
}

/// The server is a separate process and not a child of the program. The program gets no thread or child from it.
#[test]
fn a_server_is_started_beside_the_program() {
    let world = World::new();
    let mut serving = world.calls("serves valeC9:a").spawn().unwrap();
    let mut output = BufReader::new(Timely(serving.stdout.take().unwrap()));
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let own = format!("/proc/{}", serving.id());
    assert_eq!(std::fs::read_dir(format!("{own}/task")).unwrap().count(), 1, "no thread of ours");
    let children = std::fs::read_to_string(format!("{own}/task/{}/children", serving.id()));
    assert_eq!(children.unwrap_or_default().trim(), "");
    let server = world.server_process();
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_string();
    assert_ne!(field("PPid:"), serving.id().to_string());
    assert_eq!(u64::from_str_radix(&field("SigBlk:"), 16).unwrap(), 0);
    // The server ends some time after its last program, and not before.
    serving.kill().unwrap();
    serving.wait().unwrap();
    await_end(server);
    assert!(std::fs::read_dir(world.folder.path()).unwrap().flatten().all(|entry| entry.file_name() == ".lock"));
}

const SECOND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Waits until a process has ended.
fn await_end(process: u32) {
    let process = Pid::from_raw(process.cast_signed()).unwrap();
    // An error means that the process has already ended.
    if let Ok(process) = pidfd_open(process, PidfdFlags::empty()) {
        until("the end of the server", || {
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&SECOND)).unwrap() > 0
        });
    }
}

/// A server whose folder was removed ends, since no program can find it.
#[test]
fn a_server_ends_after_its_folder_was_removed() {
    let world = World::new();
    let mut serving = world.calls("serves valeC9:b").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(Timely(serving.stdout.take().unwrap())).read_line(&mut line).unwrap();
    let server = world.server_process();
    drop(world);
    serving.kill().unwrap();
    serving.wait().unwrap();
    await_end(server);
}

#[test]
fn an_invalid_pointer_is_an_error() {
    fine("pointers valePt:a");
}

/// A container's sandbox may forbid process_vm_readv(2).
#[test]
fn a_program_may_be_forbidden_to_copy_by_the_kernel() {
    fine("confined valeC17:b valeC17:a");
}

#[test]
fn select_returns_the_remaining_time() {
    fine("time-left valeC10:a");
}

#[test]
fn creat_opens_as_well() {
    fine("created valeC11:a");
}

#[test]
fn epoll_reports_every_descriptor_in_turn() {
    fine("fair valeC31:a valeC31:b");
}

#[test]
fn invalid_requests_have_netmap_s_errors() {
    fine("refusals valeC30:a");
}

#[test]
fn external_memory_is_no_longer_than_its_program_says_and_is_freed() {
    fine("external valeC12:a/x");
}

/// If the message cannot be written, it is lost, and the call still fails with an error.
#[test]
fn a_refusal_does_not_end_the_program() {
    let world = World::served(0o600);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = end_of(&mut world.command("open valeC13:").stdout(Stdio::null()).stderr(full).spawn().unwrap());
    assert_eq!(status.code(), Some(1));
    // Here the first file that the program opens gets descriptor 2. That file must stay empty.
    let file = world.folder.path().join(".file");
    std::fs::write(&file, "").unwrap();
    let mut shell = Command::new("sh");
    let program = world.command("open valeC13:");
    let run = r#"preload=$LD_PRELOAD; unset LD_PRELOAD; exec 2>&-; LD_PRELOAD=$preload exec "$0" "$@""#;
    shell.args(["-c", run]).arg(program.get_program()).args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    Timely(child.stderr.take().unwrap()).read_to_string(&mut said).unwrap();
    assert_eq!((end_of(&mut child).code(), &*said), (Some(1), ""));
}
