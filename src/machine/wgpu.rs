//! Devices that wgpu reaches. Never through OpenGL: where there is no other driver, wgpu takes it without a word, and its
//! software driver has the same name as Vulkan's.

use burn::backend::{CubeDevice, DispatchDevice, WgpuBackend, WgpuDevice, WgpuDeviceKind};
use burn::tensor::Device;

/// The interfaces to GPUs that are used, best first. On a Mac the choice is wgpu's: it has Metal alone.
const INTERFACES: &[WgpuBackend] =
    if cfg!(target_os = "macos") { &[WgpuBackend::Auto] } else { &[WgpuBackend::Vulkan, WgpuBackend::Dx12] };

/// In the order in which they are numbered: cards first, a driver that computes on the CPU last.
const KINDS: [WgpuDeviceKind; 5] = [
    WgpuDeviceKind::DiscreteGpu(0),
    WgpuDeviceKind::IntegratedGpu(0),
    WgpuDeviceKind::VirtualGpu(0),
    WgpuDeviceKind::Other(0),
    WgpuDeviceKind::Cpu,
];

/// Every device of the first interface that has one.
pub(super) fn devices() -> Vec<Device> {
    let of = |interface: &WgpuBackend| -> Vec<Device> {
        let seed = |kind: &WgpuDeviceKind| CubeDevice::Wgpu(WgpuDevice::new(kind.clone()).on(*interface));
        let found = KINDS.iter().flat_map(|kind| CubeDevice::enumerate(seed(kind).to_id()));
        found.map(|id| Device::new(CubeDevice::from_id(id))).collect()
    };
    INTERFACES.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The interface that a device is reached by; `None` of a device that is not wgpu's.
pub(super) fn interface(device: &Device) -> Option<String> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) if device.backend == WgpuBackend::Auto => {
            Some("Metal".to_owned())
        }
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => Some(format!("{:?}", device.backend)),
        _ => None,
    }
}
