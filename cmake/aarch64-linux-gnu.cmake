# Debian's cross compiler, its libraries for arm64 and qemu's user mode, which runs the tests; `./dev test arm` installs them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
file(GLOB dlpack_DIR /usr/lib/*/cmake/dlpack)  # headers alone, in a package that Debian installs for one architecture at a time
