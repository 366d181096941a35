#include "tests/fuzz/message_mutator.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "google/protobuf/descriptor.h"

namespace kvtier::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kDepthMax = 8;
constexpr int kElementsMax = 64;
constexpr int kAppended = -1;

// A number near `near`, a small one, or one at an edge.
int64_t DrawNumber(Random& random, int64_t near) {
  constexpr int64_t kEdges[] = {
      0,         1,        -1,    16,    63,    64,        65,        127, 128,           255,
      1024,      4096,     32768, 65535, 65536, INT32_MAX, INT32_MIN, 656, INT32_MAX - 1, 1 << 30,
      INT64_MAX, INT64_MIN};
  switch (Below(random, 4)) {
    case 0:
      return kEdges[Below(random, std::size(kEdges))];
    case 1:  // wraps at the edges, as any other sum would
      return static_cast<int64_t>(static_cast<uint64_t>(near) + Below(random, 5) - 2);
    case 2:
      return static_cast<int64_t>(Below(random, 8));
    default:
      return static_cast<int64_t>(Below(random, 40));
  }
}

// Sets a scalar field, or element `index` of a repeated one (kAppended: a new one).
template <typename Value, typename Set, typename SetAt, typename Add>
void Put(int index, Value value, bool repeated, Set set, SetAt set_at, Add add) {
  if (!repeated) {
    set(value);
  } else if (index == kAppended) {
    add(value);
  } else {
    set_at(index, value);
  }
}

}  // namespace

#define KVTIER_PUT(Type, value)                                                           \
  Put(                                                                                    \
      index, value, field->is_repeated(),                                                 \
      [&](const auto& v) { reflection->Set##Type(message, field, v); },                   \
      [&](int i, const auto& v) { reflection->SetRepeated##Type(message, field, i, v); }, \
      [&](const auto& v) { reflection->Add##Type(message, field, v); })

void MessageMutator::SetScalar(Message* message, const FieldDescriptor* field, int index,
                               Random& random) const {
  const Reflection* const reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const int64_t near =
          field->is_repeated()
              ? (index >= 0 ? reflection->GetRepeatedInt32(*message, field, index) : 0)
              : reflection->GetInt32(*message, field);
      return KVTIER_PUT(Int32, static_cast<int32_t>(DrawNumber(random, near)));
    }
    case FieldDescriptor::CPPTYPE_INT64:
      return KVTIER_PUT(Int64, DrawNumber(random, 0));
    case FieldDescriptor::CPPTYPE_UINT32:
      return KVTIER_PUT(UInt32, static_cast<uint32_t>(DrawNumber(random, 0)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return KVTIER_PUT(UInt64, static_cast<uint64_t>(DrawNumber(random, 0)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return KVTIER_PUT(Double, static_cast<double>(DrawNumber(random, 0)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return KVTIER_PUT(Float, static_cast<float>(DrawNumber(random, 0)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return KVTIER_PUT(Bool, Below(random, 2) == 1);
    case FieldDescriptor::CPPTYPE_ENUM:
      return KVTIER_PUT(EnumValue, static_cast<int>(Below(random, 5)) - 1);
    case FieldDescriptor::CPPTYPE_STRING:
      return KVTIER_PUT(String, DrawText(random));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return;
  }
}

#undef KVTIER_PUT

std::string MessageMutator::DrawText(Random& random) const {
  if (!words_.empty() && Below(random, 10) != 0) return words_[Below(random, words_.size())];
  return std::string(Below(random, 200), static_cast<char>('!' + Below(random, 90)));
}

void MessageMutator::AddElement(Message* message, const FieldDescriptor* field, Random& random,
                                int depth) const {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    Draw(message->GetReflection()->AddMessage(message, field), random, depth + 1);
  } else {
    SetScalar(message, field, kAppended, random);
  }
}

void MessageMutator::Draw(Message* message, Random& random, int depth) const {
  const auto* const descriptor = message->GetDescriptor();
  const Reflection* const reflection = message->GetReflection();
  if (depth > kDepthMax) return;
  // A field of each oneof, and most of the others.
  const int oneofs = descriptor->real_oneof_decl_count();
  for (int i = 0; i < oneofs; ++i) {
    const auto* const oneof = descriptor->oneof_decl(i);
    const auto* const field =
        oneof->field(static_cast<int>(Below(random, static_cast<uint64_t>(oneof->field_count()))));
    ChangeField(message, field, random, depth);
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    if (field->real_containing_oneof() != nullptr || Below(random, 4) == 0) continue;
    if (field->is_repeated()) {
      for (uint64_t n = Below(random, 4); n > 0; --n) AddElement(message, field, random, depth);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Draw(reflection->MutableMessage(message, field), random, depth + 1);
    } else {
      SetScalar(message, field, kAppended, random);
    }
  }
}

void MessageMutator::ChangeRepeated(Message* message, const FieldDescriptor* field, Random& random,
                                    int depth) const {
  const Reflection* const reflection = message->GetReflection();
  const int size = reflection->FieldSize(*message, field);
  const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (size == 0) return AddElement(message, field, random, depth);
  const int at = static_cast<int>(Below(random, static_cast<uint64_t>(size)));
  switch (Below(random, 6)) {
    case 0:
      if (size < kElementsMax) AddElement(message, field, random, depth);
      if (reflection->FieldSize(*message, field) > size)
        reflection->SwapElements(message, field, at, size);
      return;
    case 1:
      reflection->SwapElements(message, field, at, size - 1);
      return reflection->RemoveLast(message, field);
    case 2:
      return reflection->SwapElements(message, field, at,
                                      static_cast<int>(Below(random, static_cast<uint64_t>(size))));
    case 3:
      if (messages && size < kElementsMax) {
        const std::string copy =
            reflection->GetRepeatedMessage(*message, field, at).SerializeAsString();
        reflection->AddMessage(message, field)->ParseFromString(copy);
        return;
      }
      break;
    default:
      break;
  }
  if (messages) {
    Mutate(reflection->MutableRepeatedMessage(message, field, at), random);
  } else {
    SetScalar(message, field, at, random);
  }
}

void MessageMutator::ChangeField(Message* message, const FieldDescriptor* field, Random& random,
                                 int depth) const {
  const Reflection* const reflection = message->GetReflection();
  if (field->is_repeated()) return ChangeRepeated(message, field, random, depth);
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return SetScalar(message, field, kAppended, random);
  }
  if (!reflection->HasField(*message, field)) {
    Draw(reflection->MutableMessage(message, field), random, depth + 1);
  } else if (Below(random, 12) == 0) {
    reflection->ClearField(message, field);
  } else {
    Mutate(reflection->MutableMessage(message, field), random);
  }
}

void MessageMutator::Mutate(Message* message, Random& random) const {
  const auto* const descriptor = message->GetDescriptor();
  const Reflection* const reflection = message->GetReflection();
  if (descriptor->field_count() == 0) return;
  std::vector<const FieldDescriptor*> present;
  reflection->ListFields(*message, &present);
  // Mostly what is there; now and then a field that is not, which ends another of its oneof.
  const FieldDescriptor* field = descriptor->field(
      static_cast<int>(Below(random, static_cast<uint64_t>(descriptor->field_count()))));
  if (!present.empty() && Below(random, 5) != 0) field = present[Below(random, present.size())];
  ChangeField(message, field, random, 0);
}

}  // namespace kvtier::fuzz
