// Changes protobuf messages by reflection: whatever a descriptor allows, mostly near what is there
// and at the edges of what numbers can be.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {

class MessageMutator {
 public:
  // `words`: texts that mean something to who reads the messages.
  explicit MessageMutator(std::vector<std::string> words) : words_(std::move(words)) {}

  // Changes one thing somewhere in `message`.
  void Mutate(google::protobuf::Message* message, Random& random) const;
  // Another message of `message`'s type: every field drawn anew.
  void Draw(google::protobuf::Message* message, Random& random, int depth = 0) const;

 private:
  void ChangeField(google::protobuf::Message* message,
                   const google::protobuf::FieldDescriptor* field, Random& random, int depth) const;
  void ChangeRepeated(google::protobuf::Message* message,
                      const google::protobuf::FieldDescriptor* field, Random& random,
                      int depth) const;
  void SetScalar(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                 int index, Random& random) const;
  void AddElement(google::protobuf::Message* message,
                  const google::protobuf::FieldDescriptor* field, Random& random, int depth) const;
  std::string DrawText(Random& random) const;

  const std::vector<std::string> words_;
};

}  // namespace kvtier::fuzz
