// tests/gpu/design_a.cu, compiled by the host's compiler for the simulated GPU.
#include "tests/gpu/design_a.cu"
