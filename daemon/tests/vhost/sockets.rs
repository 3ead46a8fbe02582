//! Claims about the socket file.

use std::fs;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use campanile_daemon::frontend::vhost::socket::VgpuSocket;
use campanile_daemon::listener::SocketError;
use tempfile::TempDir;

use crate::device::Script;

fn spawn(path: &Path) -> Result<VgpuSocket, SocketError> {
    let script = Script::new(false, false);
    VgpuSocket::spawn(path, move || script.device(), Arc::default())
}

#[test]
fn live_socket_is_not_stolen() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("s");
    let first = spawn(&path).unwrap();
    let error = spawn(&path).unwrap_err();
    assert!(matches!(error, SocketError::InUse { .. }));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    UnixStream::connect(first.path()).unwrap();
}

#[test]
fn dead_socket_is_replaced() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let socket = spawn(&path).unwrap();
    UnixStream::connect(socket.path()).unwrap();
}

#[test]
fn other_file_is_left_alone() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("s");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(spawn(&path).unwrap_err(), SocketError::NotASocket { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn missing_folder_is_named() {
    let error = spawn(Path::new("/nowhere/at/all")).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn socket_file_goes_with_its_server() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("s");
    spawn(&path).unwrap().shutdown();
    assert!(!path.exists());
    drop(spawn(&path).unwrap());
    assert!(!path.exists());
}

/// A migration puts the next back-end's socket in the place of this one.
#[test]
fn file_that_another_has_put_there_stays() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("s");
    let socket = spawn(&path).unwrap();
    fs::rename(&path, directory.path().join("old")).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    socket.shutdown();
    assert!(path.exists());
}
