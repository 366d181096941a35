// DLPack tensors whose lifetime is a Python object's.
//
// The few functions of Python's C interface that this needs are looked up in the running process,
// so that one library serves every Python.
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "client/data_plane/data_plane.h"

namespace {

// As dlpack.h has them (DLPack 0.x, "dltensor").
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

constexpr char kUntakenName[] = "dltensor";

template <typename Function>
Function* Find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

struct Python {
  void (*increase)(void*) = Find<void(void*)>("Py_IncRef");
  void (*decrease)(void*) = Find<void(void*)>("Py_DecRef");
  int (*is_initialized)() = Find<int()>("Py_IsInitialized");
  int (*ensure)() = Find<int()>("PyGILState_Ensure");
  void (*release)(int) = Find<void(int)>("PyGILState_Release");

  bool found() const {
    return increase != nullptr && decrease != nullptr && is_initialized != nullptr &&
           ensure != nullptr && release != nullptr;
  }
};

struct Tensor {
  DLManagedTensor managed = {};
  std::vector<int64_t> shape, strides;
  void* owner = nullptr;
  Python python;
};

// Called by whoever took the tensor, on any thread.
void Delete(DLManagedTensor* managed) {
  const std::unique_ptr<Tensor> tensor(static_cast<Tensor*>(managed->manager_ctx));
  // The interpreter may be gone, and its objects with it.
  if (tensor->python.is_initialized() == 0) return;
  const int state = tensor->python.ensure();
  tensor->python.decrease(tensor->owner);
  tensor->python.release(state);
}

}  // namespace

void* kvtier_dlpack(void* address, int32_t device_type, int32_t device_id, int32_t code,
                    int32_t bits, int32_t dimensions, const int64_t* shape, const int64_t* strides,
                    void* owner) {
  auto tensor = std::make_unique<Tensor>();
  if (!tensor->python.found()) return nullptr;
  tensor->shape.assign(shape, shape + dimensions);
  tensor->strides.assign(strides, strides + dimensions);
  tensor->owner = owner;
  tensor->python.increase(owner);
  DLManagedTensor* const managed = &tensor->managed;
  managed->dl_tensor = {.data = address,
                        .device = {device_type, device_id},
                        .ndim = dimensions,
                        .dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1},
                        .shape = tensor->shape.data(),
                        .strides = tensor->strides.data(),
                        .byte_offset = 0};
  managed->deleter = Delete;
  managed->manager_ctx = tensor.release();
  return managed;
}

void kvtier_dlpack_capsule_destructor(void* capsule) {
  // Whoever takes the tensor renames the capsule.
  const auto is_valid = Find<int(void*, const char*)>("PyCapsule_IsValid");
  const auto get_pointer = Find<void*(void*, const char*)>("PyCapsule_GetPointer");
  if (is_valid == nullptr || get_pointer == nullptr || is_valid(capsule, kUntakenName) == 0) return;
  auto* const managed = static_cast<DLManagedTensor*>(get_pointer(capsule, kUntakenName));
  managed->deleter(managed);
}
