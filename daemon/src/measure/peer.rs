//! The other process of the bare ping-pongs: what the machine can do at best.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_host_gpu::engine::channel::Channel;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use rustix::event::EventfdFlags;

/// Where in the page the peer counts its wake-ups.
const WOKEN: u64 = 64;
/// Ends the game.
const OVER: u64 = u64::MAX;
/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;
/// How long a peer waits for a move before it takes the other for dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// A peer process.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    page: Mapping,
    there: OwnedFd,
    back: OwnedFd,
}

fn word(page: &Mapping) -> anyhow::Result<&AtomicU64> {
    page.word(0).context("the shared page has no first word")
}

fn wait_for(word: &AtomicU64, value: u64) -> anyhow::Result<u64> {
    let begun = Instant::now();
    loop {
        for _ in 0..LOOKS {
            let seen = word.load(Ordering::Acquire);
            if seen == value || seen == OVER {
                return Ok(seen);
            }
            std::hint::spin_loop();
        }
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the other process does not answer");
    }
}

fn read_event(event: &OwnedFd) -> io::Result<u64> {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count)?;
    Ok(u64::from_ne_bytes(count))
}

fn write_event(event: &OwnedFd, count: u64) -> io::Result<()> {
    rustix::io::write(event, &count.to_ne_bytes())?;
    Ok(())
}

impl Peer {
    /// Starts one.
    pub fn start() -> anyhow::Result<Self> {
        let file = create_memfd("campanile-ping-pong", PAGE_SIZE)?;
        let there = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let back = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new(std::env::current_exe()?)
            .arg("peer")
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(Stdio::null())
            .spawn()
            .context("starting the ping-pong peer")?;
        ours.send(&(), &[], &[file.as_fd(), there.as_fd(), back.as_fd()], true)?;
        let page = Mapping::new(file, 0, PAGE_SIZE, Access::ReadWrite)?;
        Ok(Self { child, page, there, back })
    }

    /// Round trips over one cache line.
    pub fn cache_line(&self, rounds: u64) -> anyhow::Result<Vec<Duration>> {
        let word = word(&self.page)?;
        let mut samples = Vec::with_capacity(usize::try_from(rounds)?);
        for round in 0..rounds {
            let begun = Instant::now();
            word.store(2 * round + 1, Ordering::Release);
            anyhow::ensure!(wait_for(word, 2 * round + 2)? != OVER, "the ping-pong peer has ended");
            samples.push(begun.elapsed());
        }
        // From now on the peer plays over eventfds.
        word.store(OVER, Ordering::Release);
        Ok(samples)
    }

    /// Round trips over eventfds; after [`Self::cache_line`].
    pub fn eventfd(&self, rounds: u64) -> anyhow::Result<Vec<Duration>> {
        let mut samples = Vec::with_capacity(usize::try_from(rounds)?);
        for _ in 0..rounds {
            let begun = Instant::now();
            write_event(&self.there, 1)?;
            read_event(&self.back)?;
            samples.push(begun.elapsed());
        }
        write_event(&self.there, 2)?;
        Ok(samples)
    }

    /// One wake-up of the peer, which sleeps on its eventfd: until the word that it stores is seen here, polling.
    /// After [`Self::eventfd`].
    pub fn wake(&self, round: u64) -> anyhow::Result<Duration> {
        let word = self.page.word(WOKEN).context("the shared page has no second line")?;
        let begun = Instant::now();
        write_event(&self.there, 1)?;
        wait_for(word, round)?;
        Ok(begun.elapsed())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// `campanile peer`: plays over the channel's page, then over its eventfds, then is woken until it is killed.
pub fn play(socket: OwnedFd) -> anyhow::Result<()> {
    let channel = Channel::from_socket(socket);
    let received = channel.receive::<()>(true)?.context("no game")?;
    let [file, there, back]: [OwnedFd; 3] =
        received.descriptors.try_into().map_err(|_| anyhow::anyhow!("a game needs three descriptors"))?;
    let page = Mapping::new(file.into(), 0, PAGE_SIZE, Access::ReadWrite)?;
    let word = word(&page)?;
    let mut round = 0;
    while wait_for(word, 2 * round + 1)? != OVER {
        word.store(2 * round + 2, Ordering::Release);
        round += 1;
    }
    while read_event(&there)? == 1 {
        write_event(&back, 1)?;
    }
    let woken = page.word(WOKEN).context("the shared page has no second line")?;
    loop {
        let count = read_event(&there)?;
        woken.store(woken.load(Ordering::Relaxed) + count, Ordering::Release);
    }
}
