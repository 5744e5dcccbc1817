// A library that, as some others do, cannot be loaded where no room for its thread-local variable was reserved when the
// process started. `amanda doctor` loads it to see whether some is left. Amanda's own variables need none: theirs is
// allocated when used.

extern "C" {
extern thread_local volatile char amanda_room_probe;
__attribute__((tls_model("initial-exec"))) thread_local volatile char amanda_room_probe;
char amanda_read_room_probe() { return amanda_room_probe; }
}
