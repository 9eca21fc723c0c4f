//! Computes the device addresses of a mapping's bytes, one or several at a time.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::sync::Arc;

/// An address as used by a device. It must never be turned into a pointer.
pub type DeviceAddress = u64;

/// The device addresses of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// One range, with an IOMMU or in the model.
    Contiguous(Contiguous),
    /// Physical addresses page by page, without an IOMMU.
    Paged(Paged),
}

impl Addresses {
    /// Returns the device address of the byte at `offset` of the mapping.
    pub fn at(&self, offset: usize) -> DeviceAddress {
        match self {
            Addresses::Contiguous(range) => range.locate(offset),
            Addresses::Paged(pages) => pages.locate(offset),
        }
    }

    /// Returns whether all of the first `bytes` bytes have an address.
    pub(super) fn cover(&self, bytes: usize) -> bool {
        match self {
            Addresses::Contiguous(_) => true,
            Addresses::Paged(Paged { pages, shift }) => bytes.div_ceil(1 << shift) <= pages.len(),
        }
    }
}

/// Computes the device address of a byte from its offset in the mapping. Queues are generic over it, so that the
/// common case is one addition.
pub trait Locate: Clone + Send + 'static {
    /// Computes the address of the byte at this offset.
    fn locate(&self, offset: usize) -> DeviceAddress;

    /// Returns [`locate`](Locate::locate) as a closure for loops, with its constants in registers.
    #[inline(always)]
    fn locator(&self) -> impl Fn(usize) -> DeviceAddress {
        |offset| self.locate(offset)
    }

    /// Computes four addresses at a time.
    ///
    /// # Safety
    /// The processor supports AVX2, and the offsets are inside the mapping.
    #[cfg(target_arch = "x86_64")]
    unsafe fn locate_4(&self, offsets: __m256i) -> __m256i;

    /// Computes eight addresses at a time.
    ///
    /// # Safety
    /// The processor supports AVX-512, and the offsets are inside the mapping.
    #[cfg(target_arch = "x86_64")]
    unsafe fn locate_8(&self, offsets: __m512i) -> __m512i;
}

/// One contiguous range, which begins at this address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contiguous(pub DeviceAddress);

impl Locate for Contiguous {
    #[inline(always)]
    fn locate(&self, offset: usize) -> DeviceAddress {
        self.0 + offset as u64
    }

    #[inline(always)]
    fn locator(&self) -> impl Fn(usize) -> DeviceAddress {
        let base = self.0;
        move |offset| base + offset as u64
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn locate_4(&self, offsets: __m256i) -> __m256i {
        _mm256_add_epi64(offsets, _mm256_set1_epi64x(self.0 as i64))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn locate_8(&self, offsets: __m512i) -> __m512i {
        _mm512_add_epi64(offsets, _mm512_set1_epi64(self.0 as i64))
    }
}

/// Pages of one size, each with its own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paged {
    pages: Arc<[DeviceAddress]>,
    shift: u32,
}

impl Paged {
    /// Creates pages of `size` bytes (a power of two) at these addresses.
    pub fn new(pages: Vec<DeviceAddress>, size: usize) -> Paged {
        Paged { pages: pages.into(), shift: size.trailing_zeros() }
    }

    /// Returns the mask of an offset within its page.
    #[inline(always)]
    fn within(&self) -> usize {
        (1 << self.shift) - 1
    }
}

impl Locate for Paged {
    #[inline(always)]
    fn locate(&self, offset: usize) -> DeviceAddress {
        self.pages[offset >> self.shift] + (offset & self.within()) as u64
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn locate_4(&self, offsets: __m256i) -> __m256i {
        let page = _mm256_srl_epi64(offsets, _mm_cvtsi32_si128(self.shift as i32));
        let within = _mm256_and_si256(offsets, _mm256_set1_epi64x(self.within() as i64));
        // SAFETY: the caller promises that the offsets are inside the mapping, all of which has pages
        // ([`Addresses::cover`]).
        _mm256_add_epi64(within, unsafe { _mm256_i64gather_epi64::<8>(self.pages.as_ptr().cast(), page) })
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn locate_8(&self, offsets: __m512i) -> __m512i {
        let page = _mm512_srl_epi64(offsets, _mm_cvtsi32_si128(self.shift as i32));
        let within = _mm512_and_si512(offsets, _mm512_set1_epi64(self.within() as i64));
        // SAFETY: as above.
        _mm512_add_epi64(within, unsafe { _mm512_i64gather_epi64::<8>(page, self.pages.as_ptr().cast()) })
    }
}
