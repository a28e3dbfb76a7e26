"""Host programs: what `ptxemu run` puts in place of the CUDA runtime and driver."""
