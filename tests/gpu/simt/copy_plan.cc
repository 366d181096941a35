// kernels/cuda/copy_plan.cu, compiled by the host's compiler for the simulated GPU.
#include "kernels/cuda/copy_plan.cu"
