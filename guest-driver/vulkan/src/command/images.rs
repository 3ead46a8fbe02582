//! Commands on images. No format is said to be there for any of them, so they end a recording with a failure.

use ash::vk;

use super::buffer::record;
use crate::report::report;

/// Commands that fail, with what they take behind the command buffer.
macro_rules! refused {
    ($($function:ident $name:literal ($($argument:ty),*);)*) => {
        $(pub(crate) extern "system" fn $function(buffer: vk::CommandBuffer, $(_: $argument),*) {
            record($name, buffer, |recording, _| {
                report!(concat!($name, ": there are no images"));
                recording.fail(vk::Result::ERROR_UNKNOWN);
            });
        })*
    };
}

refused! {
    blit2 "vkCmdBlitImage2" (*const vk::BlitImageInfo2<'_>);
    clear "vkCmdClearColorImage" (vk::Image, vk::ImageLayout, *const vk::ClearColorValue, u32, *const vk::ImageSubresourceRange);
    copy "vkCmdCopyImage" (vk::Image, vk::ImageLayout, vk::Image, vk::ImageLayout, u32, *const vk::ImageCopy);
    copy2 "vkCmdCopyImage2" (*const vk::CopyImageInfo2<'_>);
    from_buffer "vkCmdCopyBufferToImage" (vk::Buffer, vk::Image, vk::ImageLayout, u32, *const vk::BufferImageCopy);
    from_buffer2 "vkCmdCopyBufferToImage2" (*const vk::CopyBufferToImageInfo2<'_>);
    resolve2 "vkCmdResolveImage2" (*const vk::ResolveImageInfo2<'_>);
    to_buffer "vkCmdCopyImageToBuffer" (vk::Image, vk::ImageLayout, vk::Buffer, u32, *const vk::BufferImageCopy);
    to_buffer2 "vkCmdCopyImageToBuffer2" (*const vk::CopyImageToBufferInfo2<'_>);
}
