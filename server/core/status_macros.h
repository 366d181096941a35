// Early return on errors.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the function if `expression` (absl::Status) is not OK.
#define KVTIER_RETURN_IF_ERROR(expression)           \
  do {                                               \
    absl::Status kvtier_status_ = (expression);      \
    if (!kvtier_status_.ok()) return kvtier_status_; \
  } while (false)

#define KVTIER_MACRO_CONCAT_INNER_(a, b) a##b
#define KVTIER_MACRO_CONCAT_(a, b) KVTIER_MACRO_CONCAT_INNER_(a, b)

// Declares or assigns `target` from `expression` (absl::StatusOr), or returns its error.
#define KVTIER_ASSIGN_OR_RETURN(target, expression) \
  KVTIER_ASSIGN_OR_RETURN_(KVTIER_MACRO_CONCAT_(kvtier_or_, __LINE__), target, expression)
#define KVTIER_ASSIGN_OR_RETURN_(variable, target, expression) \
  auto variable = (expression);                                \
  if (!variable.ok()) return std::move(variable).status();     \
  target = *std::move(variable)
