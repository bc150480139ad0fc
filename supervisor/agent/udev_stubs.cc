// The static hwloc asks udev for the names of disks and network cards, which nobody here wants:
// with these it finds no udev, and the program needs no library of it. Read from udev's manual
// pages; what hwloc 2.9 calls, and nothing more.
struct udev;
struct udev_device;

extern "C" {

udev* udev_new() {
  return nullptr;
}

udev* udev_unref(udev*) {
  return nullptr;
}

udev_device* udev_device_new_from_subsystem_sysname(udev*, const char*, const char*) {
  return nullptr;
}

const char* udev_device_get_property_value(udev_device*, const char*) {
  return nullptr;
}

udev_device* udev_device_unref(udev_device*) {
  return nullptr;
}

}  // extern "C"
