// kernels/cuda/invalidate.cu, compiled by the host's compiler for the simulated GPU.
#include "kernels/cuda/invalidate.cu"
