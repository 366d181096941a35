// kernels/cuda/backup.cu, compiled by the host's compiler for the simulated GPU.
#include "kernels/cuda/backup.cu"
