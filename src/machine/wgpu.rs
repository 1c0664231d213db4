//! Devices of wgpu, never through OpenGL: without another driver wgpu would use it silently, and its software driver has the same name as
//! Vulkan's.

use burn::backend::{CubeDevice, DispatchDevice, WgpuBackend, WgpuDevice, WgpuDeviceKind};
use burn::tensor::Device;

/// Graphics APIs in order of preference. On a Mac wgpu has only Metal.
const INTERFACES: &[WgpuBackend] =
    if cfg!(target_os = "macos") { &[WgpuBackend::Auto] } else { &[WgpuBackend::Vulkan, WgpuBackend::Dx12] };

/// Kinds of devices in the order of their numbers: cards first, drivers that compute on the CPU last.
const KINDS: [WgpuDeviceKind; 5] = [
    WgpuDeviceKind::DiscreteGpu(0),
    WgpuDeviceKind::IntegratedGpu(0),
    WgpuDeviceKind::VirtualGpu(0),
    WgpuDeviceKind::Other(0),
    WgpuDeviceKind::Cpu,
];

/// Every device of the first API that has one.
pub(super) fn devices() -> Vec<Device> {
    let of = |interface: &WgpuBackend| -> Vec<Device> {
        let seed = |kind: &WgpuDeviceKind| CubeDevice::Wgpu(WgpuDevice::new(kind.clone()).on(*interface));
        let found = KINDS.iter().flat_map(|kind| CubeDevice::enumerate(seed(kind).to_id()));
        found.map(|id| Device::new(CubeDevice::from_id(id))).collect()
    };
    INTERFACES.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The API of a device; `None` if it is not a wgpu device.
pub(super) fn interface(device: &Device) -> Option<String> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) if device.backend == WgpuBackend::Auto => {
            Some("Metal".to_owned())
        }
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => Some(format!("{:?}", device.backend)),
        _ => None,
    }
}
