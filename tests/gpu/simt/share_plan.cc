// kernels/cuda/share_plan.cu, compiled by the host's compiler for the simulated GPU.
#include "kernels/cuda/share_plan.cu"
