//! Commands whose numbers are wrong.

use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::FLAG_INFO_RING_IDX;
use campanile_protocol::virtio_gpu::command::GetCapset;
use campanile_protocol::virtio_gpu::command::GetCapsetInfo;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_CONTEXT_ID;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_PARAMETER;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_RESOURCE_ID;
use campanile_protocol::virtio_gpu::response::ERR_UNSPEC;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use zerocopy::IntoBytes;

use crate::scene::Scene;
use crate::wire;
use crate::wire::FIRST_ID;

#[test]
fn unknown_commands_are_refused() {
    let mut scene = Scene::new();
    for kind in [0, 1, 0x00ff, 0x0101, 0x0103, 0x010b, 0x0204, 0x020a, 0x0300, 0x1100, u32::MAX] {
        assert_eq!(wire::command(&scene.vm, kind, 0, &[&[0xff; 64]]), ERR_UNSPEC, "{kind:#x}");
    }
    scene.unharmed();
}

#[test]
fn mcdm_48_what_displays_need_is_not_there() {
    let mut scene = Scene::new();
    // 2D resources, scanouts (plain and blob), transfers, flushes, EDID, cursors.
    for kind in [0x0101, 0x0103, 0x0104, 0x0105, 0x010a, 0x010d, 0x0300, 0x0301] {
        assert_eq!(wire::command(&scene.vm, kind, 0, &[&[0; 64]]), ERR_UNSPEC, "{kind:#x}");
    }
    scene.unharmed();
}

#[test]
fn commands_without_their_body_are_refused() {
    let mut scene = Scene::new();
    for kind in [
        command::GET_CAPSET_INFO,
        command::GET_CAPSET,
        command::CTX_CREATE,
        command::CTX_ATTACH_RESOURCE,
        command::CTX_DETACH_RESOURCE,
        command::RESOURCE_CREATE_BLOB,
        command::RESOURCE_MAP_BLOB,
        command::RESOURCE_UNMAP_BLOB,
        command::RESOURCE_UNREF,
        command::SUBMIT_3D,
    ] {
        for bytes in 0..8 {
            assert_eq!(
                wire::command(&scene.vm, kind, FIRST_ID, &[&[0; 8][..bytes]]),
                ERR_INVALID_PARAMETER,
                "{kind:#x}"
            );
        }
    }
    scene.unharmed();
}

#[test]
fn contexts_that_are_not_there_are_refused() {
    let mut scene = Scene::new();
    let (vm, none) = (&scene.vm, FIRST_ID + 77);
    assert_eq!(wire::command(vm, command::CTX_DESTROY, none, &[]), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::command(vm, command::CTX_DESTROY, 0, &[]), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::name(vm, command::CTX_ATTACH_RESOURCE, none, 1), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::name(vm, command::CTX_DETACH_RESOURCE, none, 1), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::submit(vm, none, 0, &[]), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::create_context(vm, 0, CAPSET_ID), ERR_INVALID_CONTEXT_ID);
    scene.unharmed();
}

#[test]
fn contexts_with_a_taken_number_or_another_capset_are_refused() {
    let mut scene = Scene::new();
    let (vm, own) = (&scene.vm, FIRST_ID);
    assert_eq!(wire::create_context(vm, own, CAPSET_ID), OK_NODATA);
    assert_eq!(wire::create_context(vm, own, CAPSET_ID), ERR_INVALID_CONTEXT_ID);
    assert_eq!(wire::create_context(vm, own + 1, 4), ERR_INVALID_PARAMETER);
    assert_eq!(wire::create_context(vm, own + 1, 0), ERR_INVALID_PARAMETER);
    assert_eq!(wire::command(vm, command::CTX_DESTROY, own, &[]), OK_NODATA);
    assert_eq!(wire::command(vm, command::CTX_DESTROY, own, &[]), ERR_INVALID_CONTEXT_ID);
    scene.unharmed();
}

#[test]
fn resources_that_are_not_there_are_refused() {
    let mut scene = Scene::new();
    let (vm, none) = (&scene.vm, FIRST_ID + 99);
    assert_eq!(wire::create_context(vm, FIRST_ID, CAPSET_ID), OK_NODATA);
    for resource in [0, none, u32::MAX] {
        assert_eq!(wire::name(vm, command::CTX_ATTACH_RESOURCE, FIRST_ID, resource), ERR_INVALID_RESOURCE_ID);
        assert_eq!(wire::name(vm, command::CTX_DETACH_RESOURCE, FIRST_ID, resource), ERR_INVALID_RESOURCE_ID);
        assert_eq!(wire::name(vm, command::RESOURCE_UNREF, 0, resource), ERR_INVALID_RESOURCE_ID);
        assert_eq!(wire::name(vm, command::RESOURCE_UNMAP_BLOB, 0, resource), ERR_INVALID_RESOURCE_ID);
        assert_eq!(wire::map_blob(vm, resource, 0), ERR_INVALID_RESOURCE_ID);
    }
    scene.unharmed();
}

#[test]
fn capability_sets_that_do_not_exist_are_refused() {
    let mut scene = Scene::new();
    for (id, version) in [(0, 1), (4, 1), (31, 1), (u32::MAX, 1), (CAPSET_ID, 2), (CAPSET_ID, u32::MAX)] {
        let body = GetCapset { id, version };
        assert_eq!(
            wire::command(&scene.vm, command::GET_CAPSET, 0, &[body.as_bytes()]),
            ERR_INVALID_PARAMETER
        );
    }
    for index in [1, u32::MAX] {
        let body = GetCapsetInfo { index, padding: 0 };
        assert_eq!(
            wire::command(&scene.vm, command::GET_CAPSET_INFO, 0, &[body.as_bytes()]),
            ERR_INVALID_PARAMETER
        );
    }
    scene.unharmed();
}

#[test]
fn timelines_that_do_not_exist_are_refused() {
    let mut scene = Scene::new();
    assert_eq!(wire::create_context(&scene.vm, FIRST_ID, CAPSET_ID), OK_NODATA);
    for ring_index in [64, 255] {
        let header = Header {
            kind: command::SUBMIT_3D,
            flags: FLAG_INFO_RING_IDX,
            context_id: FIRST_ID,
            ring_index,
            ..Header::default()
        };
        assert_eq!(wire::send(&scene.vm, header, &[&[0; 8]]), ERR_INVALID_PARAMETER);
    }
    scene.unharmed();
}
