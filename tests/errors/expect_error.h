// One user mistake a case. A message must say where, what was expected, what came, and how to fix
// it: each part is pinned.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "coda/error.h"

namespace coda {

struct Message {
  std::string where, expected, got, fix;
};

/// Runs `mistake`, which must throw an E, and looks for the four parts in this order. An empty part
/// has no word of its own in the message.
template <class E, class F>
void expect_error(F mistake, const Message& message) {
  try {
    mistake();
  } catch (const E& error) {
    const std::string text = error.what();
    std::size_t from = 0;
    const auto after = [](const char* word, const std::string& part) {
      return part.empty() ? part : word + part;
    };
    for (const std::string& part : {message.where, after("expected ", message.expected),
                                    after("got ", message.got), message.fix}) {
      const std::size_t found = text.find(part, from);
      ASSERT_NE(found, std::string::npos)
          << "no \"" << part << "\" after character " << from << " of: " << text;
      from = found + part.size();
    }
    EXPECT_EQ(text.back(), '.') << text;
    return;
  } catch (const std::exception& error) {
    FAIL() << "another kind of error: " << error.what();
  }
  FAIL() << "no error; expected: " << message.where << ": expected " << message.expected;
}

}  // namespace coda
