//! The system's memory allocator, in which no virtual CPU stands still.
//!
//! A thread that stood still inside of it would hold a lock that every other thread may need. A program with virtual
//! CPUs makes this its global allocator.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;

use super::section;

/// Passes everything on to [`System`], each call as a section of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct VcpuAllocator;

// SAFETY: every call is passed on to the system's allocator as it came, and its result is passed back as it came.
unsafe impl GlobalAlloc for VcpuAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        section::enter();
        // SAFETY: the caller's promises are passed on.
        let memory = unsafe { System.alloc(layout) };
        section::leave();
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        section::enter();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) };
        section::leave();
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        section::enter();
        // SAFETY: the caller's promises are passed on.
        let memory = unsafe { System.alloc_zeroed(layout) };
        section::leave();
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        section::enter();
        // SAFETY: the caller's promises are passed on.
        let memory = unsafe { System.realloc(memory, layout, new_size) };
        section::leave();
        memory
    }
}
