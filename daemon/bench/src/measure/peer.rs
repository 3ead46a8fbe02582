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
/// What a peer is woken with that stores its word, and one that wakes the next.
const STORE: u64 = 1;
const PASS_ON: u64 = 2;
/// Ends the game.
const OVER: u64 = u64::MAX;
/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;
/// How long a peer waits for a move before it takes the other for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

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
        anyhow::ensure!(begun.elapsed() < TIMEOUT, "the other process does not answer");
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
    /// Starts one, which can wake the `next`.
    pub fn start(next: Option<&Self>) -> anyhow::Result<Self> {
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
        let next = next.map_or(there.as_fd(), |next| next.there.as_fd());
        ours.send(&(), &[], &[file.as_fd(), there.as_fd(), back.as_fd(), next], true)?;
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

    /// Starts one for no ping-pong: it is there to be woken.
    pub fn sleeping(next: Option<&Self>) -> anyhow::Result<Self> {
        let peer = Self::start(next)?;
        peer.cache_line(0)?;
        peer.eventfd(0)?;
        Ok(peer)
    }

    /// One wake-up of the peer, which sleeps on its eventfd: until the word that it stores is seen here, polling. The word
    /// counts its wake-ups, to `count` with this one. After [`Self::eventfd`].
    pub fn wake(&self, count: u64) -> anyhow::Result<Duration> {
        self.wake_with(STORE, self, count)
    }

    /// Two wake-ups in a row: this peer is woken, and wakes `next`, which it was started with.
    pub fn wake_through(&self, next: &Self, count: u64) -> anyhow::Result<Duration> {
        self.wake_with(PASS_ON, next, count)
    }

    fn wake_with(&self, what: u64, last: &Self, count: u64) -> anyhow::Result<Duration> {
        let word = last.page.word(WOKEN).context("the shared page has no second line")?;
        let begun = Instant::now();
        write_event(&self.there, what)?;
        wait_for(word, count)?;
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
    let [file, there, back, next]: [OwnedFd; 4] =
        received.descriptors.try_into().map_err(|_| anyhow::anyhow!("a game needs four descriptors"))?;
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
        match read_event(&there)? {
            PASS_ON => write_event(&next, STORE)?,
            _ => woken.store(woken.load(Ordering::Relaxed) + 1, Ordering::Release),
        }
    }
}
