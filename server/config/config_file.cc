#include "server/config/config_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

constexpr absl::string_view kNameLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";

// What YAML gives a meaning of its own at the start of a plain text.
constexpr absl::string_view kIndicators = "&*!|>%@`{}[],?:#\"'";

class Parser {
 public:
  Parser(absl::string_view path, absl::string_view content)
      : path_(path), lines_(absl::StrSplit(content, '\n')) {}

  absl::StatusOr<std::vector<ConfigEntry>> Parse();

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_, ": ", what));
  }
  absl::Status ParseLine(absl::string_view line);
  absl::Status ParseItem(absl::string_view rest);
  absl::Status ParseEntry(absl::string_view line);
  // Takes one text off `rest`; inside a list `,` and `]` end it.
  absl::StatusOr<std::string> TakeText(absl::string_view* rest, bool in_list) const;
  absl::StatusOr<std::string> TakeDoubleQuoted(absl::string_view* rest) const;
  absl::StatusOr<std::string> TakeSingleQuoted(absl::string_view* rest) const;
  absl::StatusOr<std::string> TakePlain(absl::string_view* rest, bool in_list) const;
  absl::Status TakeList(absl::string_view* rest, std::vector<std::string>* texts) const;
  // Nothing but blanks and a comment may be left.
  absl::Status CheckEnd(absl::string_view rest) const;
  // An entry "name:" with no item below it says nothing.
  absl::Status CheckOpen() const;

  const absl::string_view path_;
  const std::vector<absl::string_view> lines_;
  int line_ = 0;
  std::vector<ConfigEntry> entries_;
  bool open_ = false;  // the last entry is a list that goes on line by line
};

absl::StatusOr<std::vector<ConfigEntry>> Parser::Parse() {
  for (const absl::string_view line : lines_) {
    ++line_;
    KVTIER_RETURN_IF_ERROR(ParseLine(absl::StripSuffix(line, "\r")));
  }
  KVTIER_RETURN_IF_ERROR(CheckOpen());
  return std::move(entries_);
}

absl::Status Parser::ParseLine(absl::string_view line) {
  for (const char c : line) {
    if (c == '\t') return Error("a tab; YAML indents with blanks");
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') return Error("a control character");
  }
  const absl::string_view rest = absl::StripAsciiWhitespace(line);
  if (rest.empty() || rest[0] == '#') return absl::OkStatus();
  if (line == "---" && entries_.empty()) return absl::OkStatus();
  if (rest == "-" || absl::StartsWith(rest, "- ")) return ParseItem(rest.substr(1));
  if (line[0] == ' ') return Error("indented; there are no nested names here");
  return ParseEntry(rest);
}

absl::Status Parser::ParseItem(absl::string_view rest) {
  if (!open_) return Error("an item of no list");
  rest = absl::StripLeadingAsciiWhitespace(rest);
  KVTIER_ASSIGN_OR_RETURN(std::string text, TakeText(&rest, false));
  KVTIER_RETURN_IF_ERROR(CheckEnd(rest));
  entries_.back().texts.push_back(std::move(text));
  return absl::OkStatus();
}

absl::Status Parser::ParseEntry(absl::string_view line) {
  KVTIER_RETURN_IF_ERROR(CheckOpen());
  open_ = false;
  const size_t end = line.find_first_not_of(kNameLetters);
  if (end == absl::string_view::npos || end == 0 || line[end] != ':') {
    return Error("expected 'name: value'");
  }
  ConfigEntry entry = {.name = std::string(line.substr(0, end)), .line = line_};
  for (const ConfigEntry& other : entries_) {
    if (other.name == entry.name) {
      return Error(absl::StrCat(entry.name, " is there already, in line ", other.line));
    }
  }
  absl::string_view rest = line.substr(end + 1);
  if (!rest.empty() && rest[0] != ' ') return Error("a blank is missing after the colon");
  rest = absl::StripLeadingAsciiWhitespace(rest);
  if (rest.empty() || rest[0] == '#') {
    entry.list = open_ = true;
  } else if (rest[0] == '[') {
    entry.list = true;
    KVTIER_RETURN_IF_ERROR(TakeList(&rest, &entry.texts));
    KVTIER_RETURN_IF_ERROR(CheckEnd(rest));
  } else {
    KVTIER_ASSIGN_OR_RETURN(std::string text, TakeText(&rest, false));
    KVTIER_RETURN_IF_ERROR(CheckEnd(rest));
    entry.texts.push_back(std::move(text));
  }
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Parser::TakeText(absl::string_view* rest, bool in_list) const {
  if (absl::ConsumePrefix(rest, "\"")) return TakeDoubleQuoted(rest);
  if (absl::ConsumePrefix(rest, "'")) return TakeSingleQuoted(rest);
  return TakePlain(rest, in_list);
}

absl::StatusOr<std::string> Parser::TakeDoubleQuoted(absl::string_view* rest) const {
  std::string text;
  for (size_t i = 0; i < rest->size(); ++i) {
    const char c = (*rest)[i];
    if (c == '"') {
      rest->remove_prefix(i + 1);
      return text;
    }
    if (c != '\\') {
      text += c;
      continue;
    }
    if (++i >= rest->size()) break;
    const char escaped = (*rest)[i];
    if (escaped != '"' && escaped != '\\') {
      return Error(absl::StrCat("\\", std::string(1, escaped), R"( is none of \" and \\)"));
    }
    text += escaped;
  }
  return Error("a quote that does not end");
}

absl::StatusOr<std::string> Parser::TakeSingleQuoted(absl::string_view* rest) const {
  std::string text;
  for (size_t i = 0; i < rest->size(); ++i) {
    const char c = (*rest)[i];
    if (c == '\'') {
      if (i + 1 >= rest->size() || (*rest)[i + 1] != '\'') {
        rest->remove_prefix(i + 1);
        return text;
      }
      ++i;  // two of them are one
    }
    text += c;
  }
  return Error("a quote that does not end");
}

absl::StatusOr<std::string> Parser::TakePlain(absl::string_view* rest, bool in_list) const {
  size_t end = 0;
  for (; end < rest->size(); ++end) {
    const char c = (*rest)[end];
    if (c == '#' && end > 0 && (*rest)[end - 1] == ' ') break;
    if (in_list && (c == ',' || c == ']' || c == '[' || c == '{' || c == '}')) break;
  }
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(rest->substr(0, end));
  rest->remove_prefix(text.size());
  if (text.empty()) return Error("a value is missing");
  if (kIndicators.find(text[0]) != absl::string_view::npos || text == "-" || text == "~" ||
      absl::StartsWith(text, "- ") || absl::EqualsIgnoreCase(text, "null") ||
      absl::StrContains(text, ": ") || absl::EndsWith(text, ":")) {
    return Error(absl::StrCat("'", text, "' means something else in YAML; quote it"));
  }
  return std::string(text);
}

absl::Status Parser::TakeList(absl::string_view* rest, std::vector<std::string>* texts) const {
  const auto skip = [rest] { *rest = absl::StripLeadingAsciiWhitespace(*rest); };
  absl::ConsumePrefix(rest, "[");
  skip();
  if (absl::ConsumePrefix(rest, "]")) return absl::OkStatus();
  while (true) {
    skip();
    KVTIER_ASSIGN_OR_RETURN(std::string text, TakeText(rest, true));
    texts->push_back(std::move(text));
    skip();
    if (absl::ConsumePrefix(rest, "]")) return absl::OkStatus();
    if (!absl::ConsumePrefix(rest, ",")) return Error("expected ',' or ']' in the list");
  }
}

absl::Status Parser::CheckEnd(absl::string_view rest) const {
  const absl::string_view left = absl::StripLeadingAsciiWhitespace(rest);
  if (left.empty() || (left[0] == '#' && left.size() < rest.size())) return absl::OkStatus();
  return Error(absl::StrCat("'", left, "' after the value"));
}

absl::Status Parser::CheckOpen() const {
  if (!open_ || !entries_.back().texts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path_, ":", entries_.back().line, ": ",
                                                 entries_.back().name,
                                                 " has no value; an empty list is []"));
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(absl::string_view path,
                                                         absl::string_view content) {
  return Parser(path, content).Parse();
}

std::string QuoteValue(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace kvtier
