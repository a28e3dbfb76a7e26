"""The compiler and its friends: where they come from, which versions, and what their errors mean.

Everything is installed as wheels at the versions of configs/toolchain.yaml; only a host C++ compiler is the machine's.
`wheels` finds them, `pins` reads the versions, `host_library` says how a host library is compiled and linked.
"""
