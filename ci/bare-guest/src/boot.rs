//! From the VMM's jump to Rust: PVH begins in 32-bit mode without paging, with the start info's address in `ebx`.
//!
//! ```text
//!   pvh_entry (32 bit) ─▶ 4 GiB mapped one to one, in pages of 2 MiB ─▶ long mode ─▶ rust_entry(start info)
//! ```

#![allow(unsafe_code)]

use core::arch::global_asm;

use crate::machine;

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .align 4
    .long 4                      /* bytes of the name */
    .long 8                      /* bytes of the description */
    .long 18                     /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .quad pvh_entry

    .section .text.boot, "ax"
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    /* Four tables of 512 pages of 2 MiB. */
    movl $boot_directories, %edi
    movl $0x83, %eax
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b
    movl $boot_pointers, %edi
    movl $boot_directories + 3, %eax
    movl $4, %ecx
2:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    decl %ecx
    jnz 2b
    movl $boot_pointers + 3, boot_root
    movl $boot_root, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax              /* PAE */
    movl %eax, %cr4
    movl $0xc0000080, %ecx       /* EFER */
    rdmsr
    orl $0x100, %eax             /* LME */
    wrmsr
    movl %cr0, %eax
    orl $0x80000001, %eax
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmpl $8, $long_entry

    .code64
long_entry:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movabsq $boot_stack_top, %rsp
    movl %ebx, %edi
    xorl %ebp, %ebp
    call rust_entry
3:  hlt
    jmp 3b

    .section .rodata.boot, "a"
    .align 8
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff     /* code, 64 bit */
    .quad 0x00cf92000000ffff     /* data */
boot_gdt_pointer:
    .word 23
    .long boot_gdt

    .section .bss.boot, "aw", @nobits
    .align 4096
    .global boot_root
boot_root:
    .skip 4096
boot_pointers:
    .skip 4096
boot_directories:
    .skip 16384
boot_stack:
    .skip 65536
boot_stack_top:
    "#,
    options(att_syntax)
);

// SAFETY: no other symbol has this name, and the code above calls it as the C ABI has it.
#[unsafe(no_mangle)]
extern "C" fn rust_entry(start_info: u64) -> ! {
    machine::live(start_info)
}
