//! A running `probe explore`, killed at the end of the test.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

pub struct Explorer {
    process: Child,
    pub port: u16,
    pub token: String,
}

impl Explorer {
    /// Starts `probe explore` and reads the address that it prints.
    pub fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a process");
        let mut address = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut address).expect("an address");
        let rest = address.trim().strip_prefix("http://127.0.0.1:").expect("an address of this machine");
        let (port, token) = rest.split_once("/?token=").expect("a token");
        Self { process, port: port.parse().expect("a port"), token: token.to_owned() }
    }

    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("the server")
    }
}

impl Drop for Explorer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
