// Exceptions on their way through TensorFlow, which carries only texts.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace amanda::tensorflow {

/// Keeps an exception that a node ends with; returns a text with a token that names it: "[amanda error 42] ...".
/// `step`: one number for all nodes of one run of a graph. Exceptions that are not taken are dropped after some others.
std::string keep_error(std::exception_ptr error, int64_t step);
/// The exception that a text names. It is not kept any longer, nor are others of its step. Null if there is none.
std::exception_ptr take_error(const std::string& text);

}  // namespace amanda::tensorflow
