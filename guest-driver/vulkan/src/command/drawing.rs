//! Commands that draw, or say how: all of Vulkan 1.3's, for programs that look up every one when they start. They end a recording with a
//! failure.
#![allow(unsafe_code)]

use ash::vk;

use super::buffer::record;
use crate::commands::commands;
use crate::report::report;

fn refuse(buffer: vk::CommandBuffer, function: &'static str) {
    record("a command of graphics", buffer, |recording, _| {
        report!("{function}: there are no graphics");
        recording.fail(vk::Result::ERROR_UNKNOWN);
    });
}

/// Commands that fail, with their names and what they take behind the command buffer; and the function that finds them.
macro_rules! refused {
    ($($($text:literal)|+ $kind:ident $function:ident($($argument:ty),*);)*) => {
        $(extern "system" fn $function(buffer: vk::CommandBuffer, $(_: $argument),*) {
            refuse(buffer, stringify!($function));
        })*
        commands! { pub(crate) of_drawing: $($($text)|+ $kind = $function;)* }
    };
}

refused! {
    c"vkCmdBeginQuery" PFN_vkCmdBeginQuery begin_query(vk::QueryPool, u32, vk::QueryControlFlags);
    c"vkCmdBeginRenderPass" PFN_vkCmdBeginRenderPass begin_render_pass(*const vk::RenderPassBeginInfo<'_>, vk::SubpassContents);
    c"vkCmdBeginRenderPass2" | c"vkCmdBeginRenderPass2KHR" PFN_vkCmdBeginRenderPass2 begin_render_pass2(*const vk::RenderPassBeginInfo<'_>, *const vk::SubpassBeginInfo<'_>);
    c"vkCmdBeginRendering" PFN_vkCmdBeginRendering begin_rendering(*const vk::RenderingInfo<'_>);
    c"vkCmdBindIndexBuffer" PFN_vkCmdBindIndexBuffer bind_index_buffer(vk::Buffer, vk::DeviceSize, vk::IndexType);
    c"vkCmdBindVertexBuffers" PFN_vkCmdBindVertexBuffers bind_vertex_buffers(u32, u32, *const vk::Buffer, *const vk::DeviceSize);
    c"vkCmdBindVertexBuffers2" PFN_vkCmdBindVertexBuffers2 bind_vertex_buffers2(u32, u32, *const vk::Buffer, *const vk::DeviceSize, *const vk::DeviceSize, *const vk::DeviceSize);
    c"vkCmdClearAttachments" PFN_vkCmdClearAttachments clear_attachments(u32, *const vk::ClearAttachment, u32, *const vk::ClearRect);
    c"vkCmdDraw" PFN_vkCmdDraw draw(u32, u32, u32, u32);
    c"vkCmdDrawIndexed" PFN_vkCmdDrawIndexed draw_indexed(u32, u32, u32, i32, u32);
    c"vkCmdDrawIndexedIndirect" PFN_vkCmdDrawIndexedIndirect draw_indexed_indirect(vk::Buffer, vk::DeviceSize, u32, u32);
    c"vkCmdDrawIndexedIndirectCount" | c"vkCmdDrawIndexedIndirectCountKHR" PFN_vkCmdDrawIndexedIndirectCount draw_indexed_indirect_count(vk::Buffer, vk::DeviceSize, vk::Buffer, vk::DeviceSize, u32, u32);
    c"vkCmdDrawIndirect" PFN_vkCmdDrawIndirect draw_indirect(vk::Buffer, vk::DeviceSize, u32, u32);
    c"vkCmdDrawIndirectCount" | c"vkCmdDrawIndirectCountKHR" PFN_vkCmdDrawIndirectCount draw_indirect_count(vk::Buffer, vk::DeviceSize, vk::Buffer, vk::DeviceSize, u32, u32);
    c"vkCmdEndQuery" PFN_vkCmdEndQuery end_query(vk::QueryPool, u32);
    c"vkCmdEndRenderPass" PFN_vkCmdEndRenderPass end_render_pass();
    c"vkCmdEndRenderPass2" | c"vkCmdEndRenderPass2KHR" PFN_vkCmdEndRenderPass2 end_render_pass2(*const vk::SubpassEndInfo<'_>);
    c"vkCmdEndRendering" PFN_vkCmdEndRendering end_rendering();
    c"vkCmdNextSubpass" PFN_vkCmdNextSubpass next_subpass(vk::SubpassContents);
    c"vkCmdNextSubpass2" | c"vkCmdNextSubpass2KHR" PFN_vkCmdNextSubpass2 next_subpass2(*const vk::SubpassBeginInfo<'_>, *const vk::SubpassEndInfo<'_>);
    c"vkCmdSetBlendConstants" PFN_vkCmdSetBlendConstants set_blend_constants(*const [f32; 4usize]);
    c"vkCmdSetCullMode" PFN_vkCmdSetCullMode set_cull_mode(vk::CullModeFlags);
    c"vkCmdSetDepthBias" PFN_vkCmdSetDepthBias set_depth_bias(f32, f32, f32);
    c"vkCmdSetDepthBiasEnable" PFN_vkCmdSetDepthBiasEnable set_depth_bias_enable(vk::Bool32);
    c"vkCmdSetDepthBounds" PFN_vkCmdSetDepthBounds set_depth_bounds(f32, f32);
    c"vkCmdSetDepthBoundsTestEnable" PFN_vkCmdSetDepthBoundsTestEnable set_depth_bounds_test_enable(vk::Bool32);
    c"vkCmdSetDepthCompareOp" PFN_vkCmdSetDepthCompareOp set_depth_compare_op(vk::CompareOp);
    c"vkCmdSetDepthTestEnable" PFN_vkCmdSetDepthTestEnable set_depth_test_enable(vk::Bool32);
    c"vkCmdSetDepthWriteEnable" PFN_vkCmdSetDepthWriteEnable set_depth_write_enable(vk::Bool32);
    c"vkCmdSetFrontFace" PFN_vkCmdSetFrontFace set_front_face(vk::FrontFace);
    c"vkCmdSetLineWidth" PFN_vkCmdSetLineWidth set_line_width(f32);
    c"vkCmdSetPrimitiveRestartEnable" PFN_vkCmdSetPrimitiveRestartEnable set_primitive_restart_enable(vk::Bool32);
    c"vkCmdSetPrimitiveTopology" PFN_vkCmdSetPrimitiveTopology set_primitive_topology(vk::PrimitiveTopology);
    c"vkCmdSetRasterizerDiscardEnable" PFN_vkCmdSetRasterizerDiscardEnable set_rasterizer_discard_enable(vk::Bool32);
    c"vkCmdSetScissor" PFN_vkCmdSetScissor set_scissor(u32, u32, *const vk::Rect2D);
    c"vkCmdSetScissorWithCount" PFN_vkCmdSetScissorWithCount set_scissor_with_count(u32, *const vk::Rect2D);
    c"vkCmdSetStencilCompareMask" PFN_vkCmdSetStencilCompareMask set_stencil_compare_mask(vk::StencilFaceFlags, u32);
    c"vkCmdSetStencilOp" PFN_vkCmdSetStencilOp set_stencil_op(vk::StencilFaceFlags, vk::StencilOp, vk::StencilOp, vk::StencilOp, vk::CompareOp);
    c"vkCmdSetStencilReference" PFN_vkCmdSetStencilReference set_stencil_reference(vk::StencilFaceFlags, u32);
    c"vkCmdSetStencilTestEnable" PFN_vkCmdSetStencilTestEnable set_stencil_test_enable(vk::Bool32);
    c"vkCmdSetStencilWriteMask" PFN_vkCmdSetStencilWriteMask set_stencil_write_mask(vk::StencilFaceFlags, u32);
    c"vkCmdSetViewport" PFN_vkCmdSetViewport set_viewport(u32, u32, *const vk::Viewport);
    c"vkCmdSetViewportWithCount" PFN_vkCmdSetViewportWithCount set_viewport_with_count(u32, *const vk::Viewport);
    c"vkCmdBlitImage" PFN_vkCmdBlitImage blit_image(vk::Image, vk::ImageLayout, vk::Image, vk::ImageLayout, u32, *const vk::ImageBlit, vk::Filter);
    c"vkCmdResolveImage" PFN_vkCmdResolveImage resolve_image(vk::Image, vk::ImageLayout, vk::Image, vk::ImageLayout, u32, *const vk::ImageResolve);
    c"vkCmdClearDepthStencilImage" PFN_vkCmdClearDepthStencilImage clear_depth_stencil_image(vk::Image, vk::ImageLayout, *const vk::ClearDepthStencilValue, u32, *const vk::ImageSubresourceRange);
}
