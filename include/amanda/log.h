// Where Amanda's few log lines go.
#pragma once

#include <functional>
#include <string>

namespace amanda {

using LogSink = std::function<void(const std::string& line)>;

/// Replaces the sink of warnings (standard error at first). Any thread may call the sink.
void set_log_sink(LogSink sink);

/// Hands one line to the sink.
void log_warning(const std::string& line);

}  // namespace amanda
