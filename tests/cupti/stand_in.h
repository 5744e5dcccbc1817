// What tests ask of the library that stands in for CUPTI. None of it is CUPTI's.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
/// Forgets everything, failures included.
void stand_in_reset();
/// From now on `function` returns `result`; 0 ends that.
void stand_in_fail(const char* function, int result);
/// Another client holds the subscription; null: none does.
void stand_in_hold(const char* subscriber);
/// The calling thread launches a kernel of that name. Its records are made, and delivered when flushed.
void stand_in_launch(const char* kernel, uint32_t stream);
void stand_in_copy(uint64_t bytes);
/// One that was not done when its record was delivered: its end is 0.
void stand_in_launch_unfinished(const char* kernel);
/// Asks for a buffer and does not deliver it, as when another client's callbacks have taken the place of ours.
void stand_in_keep_a_buffer();
/// Delivers it, too late.
void stand_in_return_buffers();
/// Delivers what was made, on a thread of the library's.
void stand_in_deliver();
size_t stand_in_depth();    // of the calling thread's external ids
size_t stand_in_enabled();  // kinds of activities
bool stand_in_subscribed();
uint64_t stand_in_now();  // by the clock that it was told to use
}
