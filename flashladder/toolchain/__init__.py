"""The compiler and its friends: where they come from, which versions, and what their errors mean.

Everything is installed as wheels at the versions of configs/toolchain.yaml; only a host C++ compiler is the machine's.
`wheels` reads the pins and finds them; `errors` runs them and says what a failure means.
"""
