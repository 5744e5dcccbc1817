// The destination of Amanda's few log lines.
#pragma once

#include <functional>
#include <string>

namespace amanda {

/// Receives log lines, without a newline at the end.
using LogSink = std::function<void(const std::string& line)>;

/// Replaces the sink of warnings (at first standard error). Any thread may call the sink, several at once.
void set_log_sink(LogSink replacement);

/// Passes one line to the sink. On any thread.
void log_warning(const std::string& line);
/// The same, unless this line was passed to it before. For what repeats at each run of one place.
void log_warning_once(const std::string& line);

}  // namespace amanda
