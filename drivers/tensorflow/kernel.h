// The op AmandaTap.
#pragma once

namespace amanda::tensorflow {

/// Registers the op with the TensorFlow of this process, once. Does nothing if there is none yet, or if it lacks
/// functions. Throws `Error` if TensorFlow refuses the op.
void register_op();

}  // namespace amanda::tensorflow
