//! The kernel's ioctls for vfio and iommufd, each with its argument type.
//!
//! They are defined in linux/vfio.h and linux/iommufd.h; structures and constants come from rust-vmm's crates. (Their
//! `vfio-ioctls` is not used: it ends the process when a device disappears, and hides the kernel's error codes.)
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

pub use iommufd_bindings::iommufd::{iommu_ioas_alloc, iommu_ioas_map, iommu_ioas_unmap};
pub use vfio_bindings::bindings::vfio::*;

/// An ioctl whose argument is a `T`.
pub struct Request<T> {
    number: libc::Ioctl,
    _argument: PhantomData<fn(T)>,
}

/// `_IO(VFIO_TYPE, number)`: vfio and iommufd share the type and do not encode sizes.
const fn request<T>(number: u32) -> Request<T> {
    Request { number: ((VFIO_TYPE as u32) << 8 | number) as libc::Ioctl, _argument: PhantomData }
}

pub const GROUP_GET_STATUS: Request<vfio_group_status> = request(VFIO_BASE + 3);
pub const GROUP_SET_CONTAINER: Request<i32> = request(VFIO_BASE + 4);
pub const DEVICE_GET_REGION_INFO: Request<vfio_region_info> = request(VFIO_BASE + 8);
pub const DEVICE_GET_IRQ_INFO: Request<vfio_irq_info> = request(VFIO_BASE + 9);
pub const IOMMU_MAP_DMA: Request<vfio_iommu_type1_dma_map> = request(VFIO_BASE + 13);
pub const IOMMU_UNMAP_DMA: Request<vfio_iommu_type1_dma_unmap> = request(VFIO_BASE + 14);
pub const DEVICE_BIND_IOMMUFD: Request<vfio_device_bind_iommufd> = request(VFIO_BASE + 18);
pub const DEVICE_ATTACH_IOMMUFD_PT: Request<vfio_device_attach_iommufd_pt> = request(VFIO_BASE + 19);
pub const IOAS_ALLOC: Request<iommu_ioas_alloc> = request(0x81);
pub const IOAS_MAP: Request<iommu_ioas_map> = request(0x85);
pub const IOAS_UNMAP: Request<iommu_ioas_unmap> = request(0x86);

const SET_IOMMU: Request<()> = request(VFIO_BASE + 2);
const GROUP_GET_DEVICE_FD: Request<()> = request(VFIO_BASE + 6);
const DEVICE_SET_IRQS: Request<()> = request(VFIO_BASE + 10);

/// Makes the call. A type with a size field must have it set.
///
/// # Errors
/// The kernel's error.
pub fn call<T>(fd: impl AsFd, request: Request<T>, argument: &mut T) -> io::Result<()> {
    // SAFETY: the kernel reads and writes a `T`, as declared above for each request. If a request maps memory, the
    // caller keeps its `Mapping` alive.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request.number, argument as *mut T) }).map(drop)
}

/// Sets the container's IOMMU type.
pub fn set_iommu(container: impl AsFd, kind: u32) -> io::Result<()> {
    // SAFETY: the argument is a number, not an address.
    check(unsafe { libc::ioctl(container.as_fd().as_raw_fd(), SET_IOMMU.number, libc::c_ulong::from(kind)) }).map(drop)
}

/// Opens a device of a group by its address.
pub fn device_of_group(group: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that is terminated by 0.
    let fd = check(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), GROUP_GET_DEVICE_FD.number, name.as_ptr()) })?;
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects the interrupts of one index to eventfds; an empty slice disables them.
pub fn set_interrupts(device: impl AsFd, index: u32, events: &[impl AsFd]) -> io::Result<()> {
    let data = if events.is_empty() { VFIO_IRQ_SET_DATA_NONE } else { VFIO_IRQ_SET_DATA_EVENTFD };
    let flags = data | VFIO_IRQ_SET_ACTION_TRIGGER;
    // struct vfio_irq_set: argsz, flags, index, start, count, and the descriptors, with 32 bits each.
    let mut set = vec![0, flags, index, 0, events.len() as u32];
    set.extend(events.iter().map(|event| event.as_fd().as_raw_fd() as u32));
    set[0] = size_of_val(&set[..]) as u32;
    // SAFETY: the kernel only reads the argument, whose first field is its length.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), DEVICE_SET_IRQS.number, set.as_ptr()) }).map(drop)
}

fn check(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}
