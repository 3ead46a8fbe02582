//! A session that stands still, as data (LM-16 to LM-20, LM-25, LM-26, LM-45 to LM-57).
//!
//! Taking it changes nothing: the session can be thawed and goes on as if nothing had happened (LM-27), or dropped when
//! its successor runs (LM-28). Its size cannot change while it stands still, so that asking for size and data are one
//! (LM-16, LM-17).
//!
//! # What becomes of each thing
//!
//! | where | what | |
//! |---|---|---|
//! | `state.rs` | configuration, counters, journal, clocks, timer, epoll, connect rate | not moved: the target's own |
//! | | video memory, evicted memory | not here: page by page, as [`VideoMemory::filled`](crate::vgpu::memory::vidmm::vram::VideoMemory::filled) |
//! | | guest memory, window | not moved: the front-end shows them again; MAP_BLOB commands that wait are saved |
//! | | blobs | saved; none is on its way, since engines have let go of all |
//! | | what is due to be answered | saved: nothing is answered while it stands still |
//! | | `liars`, `to_poke`, `look_at`, `quiet_since` | not moved: about processes that have ended |
//! | `objects.rs` | processes, attached resources, devices, address spaces, holds, kernels, classes, device status | saved |
//! | | handles | saved with the generations of free places, so that an old one names nothing there either |
//! | | places in the engines' tables (`presence`, `entry`, `hw_queue`) | given anew |
//! | | offences, blocked processes (LM-55) | saved, as ages |
//! | `page.rs` | place of the device page | saved; what guests read in it is written anew from the daemon's truth |
//! | `queues.rs`, `submission.rs` | queues, software queues with how far each buffer is (LM-47, LM-48) | saved |
//! | `handed_back.rs` | buffers that an engine had: handed back by it, or in its place | saved in their software queues, first |
//! | | contexts parked for a native fence | saved as that wait |
//! | `suspends.rs` | suspended by the guest, suspend fences (LM-46) | saved; what waited for a suspend was answered |
//! | | suspended for D3 or for the standstill | not moved: it ends with the thaw (LM-56) |
//! | `scheduling.rs` | band, level, priority, quantum, grace periods (LM-46) | saved |
//! | `run_list.rs` | which contexts have work | follows from the software queues |
//! | | engine time used, debts, guesses | not moved: a standstill is no debt |
//! | `doorbells.rs` | doorbells, ring, control, how far the ring is (LM-49, LM-50) | saved |
//! | | RETRY, ABORT | saved; connected is none, since a standstill disconnects (LM-52) |
//! | `connects.rs` | connects in line | saved, in the order in which they would be served |
//! | `drains.rs` | doorbells that end | saved; their clocks start anew |
//! | `pending.rs`, `barrier.rs` | what waits for engines to let go | nothing: those have ended, so that it was done |
//! | `paging.rs` | mappings, paging operations that wait for buffers | saved |
//! | `residency.rs`, `wants.rs` | MAKE_RESIDENT messages that wait | saved |
//! | | what queues came to, what was brought back for which process, epochs of use | not moved: asked for again, and hints |
//! | `segments.rs` | guest RAM segments | saved as guest-physical pieces; files and runs are found again |
//! | `fence_table.rs`, `native_fences.rs` | fences: handles, types, values, which devices have them open, which wait (LM-53) | saved |
//! | | MonitoredValue, reports of signalled fences | rebuilt from the waiters; all waiters are looked at |
//! | `kernels.rs` | sources, each once; waits for a compilation | saved |
//! | | compiled kernels, also those that are to end | compiled again before anything runs |
//! | `engine_slot.rs` | fence ids (LM-54), buffers taken, resets that count, messages that wait for it | saved |
//! | | process, doorbell slots, hardware queue, turns | ended, disconnected, empty, given anew |
//! | `timeline.rs` | timelines: open work, fences | saved; fences by the front's names for them |
//! | `budget.rs` | what was charged | not moved: charged anew, the same, with each thing |
//! | `vgpu/memory/vidmm/allocations.rs` | number, size, place, priority (LM-45) | saved |
//! | | references, holds, pins, what is committed | counted anew |
//! | page tables | | built anew from the mappings |
//! | shared blocks of engines | suspends, place in each ring, save areas | saved with contexts and doorbells |
//! | | everything else | built anew |
//! | adapter resets that count, quarantine (LM-55) | | saved, as ages |
//! | power (LM-56), dirty tracking (LM-57) | | not moved |

pub mod at_work;
mod device;
pub mod snapshot;
