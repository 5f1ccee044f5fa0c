//! Attacks of users and programs that write to the folder of manifests.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::ground::AttackedNode;
use pintle_testbed::attacks;

attacks!(AttackedNode, "manifests":
    five_thousand_files,
    files_that_are_something_else,
    text_that_grows_when_it_is_read,
    a_manifest_that_changes_all_the_time,
);

/// Five thousand files, none of them a pod.
fn five_thousand_files(ground: &mut AttackedNode) {
    let dir = ground.node.manifests();
    for n in 0..5_000 {
        fs::write(dir.join(format!("file{n}.yaml")), "apiVersion: v1\nkind: Pod\n")
            .expect("written");
    }
    // The bystander's comes after all of them in no order: the folder has too many.
    for n in 4_000..5_000 {
        fs::remove_file(dir.join(format!("file{n}.yaml"))).expect("removed");
    }
    ground.bystander("among them");
}

/// A FIFO, a device, a folder, links to itself, to nothing, to an endless file; a huge file.
fn files_that_are_something_else(ground: &mut AttackedNode) {
    let dir = ground.node.manifests();
    mkfifo(&dir.join("fifo.yaml"), Mode::S_IRWXU).expect("made");
    symlink("/dev/zero", dir.join("zero.yaml")).expect("linked");
    symlink("loop.yaml", dir.join("loop.yaml")).expect("linked");
    symlink("nothing", dir.join("nothing.yaml")).expect("linked");
    fs::create_dir(dir.join("folder.yaml")).expect("made");
    let huge = fs::File::create(dir.join("huge.yaml")).expect("made");
    huge.set_len(4 << 30).expect("a sparse file");
    fs::write(dir.join("bytes.yaml"), [0xff_u8; 4096]).expect("written");
    ground.bystander("among them");
}

/// YAML that doubles with each alias, that is nested a hundred thousand deep, and JSON likewise.
fn text_that_grows_when_it_is_read(ground: &mut AttackedNode) {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let aliases = format!("*a{},", n - 1).repeat(9);
        let _ = writeln!(bomb, "a{n}: &a{n} [{aliases}]");
    }
    let node = &ground.node;
    node.put_text("bomb.yaml", &bomb);
    node.put_text("deep.yaml", &format!("a: {}", "[".repeat(100_000)));
    node.put_text("deeper.yaml", &"- ".repeat(100_000));
    node.put_text("deep.json", &format!("{{\"a\": {}", "[".repeat(100_000)));
    node.put_text("objects.json", &"{\"a\":".repeat(100_000));
    node.put_text("wide.yaml", &format!("metadata: {{labels: {{{}}}}}", "a: b, ".repeat(500_000)));
    node.put_text(
        "anchors.yaml",
        &(0..50_000).fold(String::new(), |mut text, n| {
            let _ = writeln!(text, "k{n}: &b{n} 1");
            text
        }),
    );
    ground.bystander("among them");
}

/// A manifest is rewritten a hundred times a second, each time with another label.
fn a_manifest_that_changes_all_the_time(ground: &mut AttackedNode) {
    let path = ground.node.manifests();
    let number = std::sync::atomic::AtomicU64::new(0);
    let flood = crate::support::Flood::start(1, move || {
        let n = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: restless, labels: {{n: \"{n}\"}}}}\n\
             spec: {{terminationGracePeriodSeconds: 1, containers: [{{name: c, \
             image: pintle.test/box:1, imagePullPolicy: Never, command: [/box, pause]}}]}}\n"
        );
        let hidden = path.join(".restless.new");
        let _ = fs::write(&hidden, text);
        let _ = fs::rename(&hidden, path.join("restless.yaml"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    });
    ground.bystander("while it changes");
    drop(flood);
}
