// The functions of TensorFlow's C interface that this driver calls. They are declared here and found at run time, in
// the TensorFlow that the process has loaded: the driver is built without it, and loads without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// TensorFlow's own types, all opaque.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

namespace amanda::tensorflow {

/// TF_DataType, an enumeration of TensorFlow's.
using DataType = int;
inline constexpr int kUnknownError = 2;  // TF_UNKNOWN of TF_Code

// AMANDA_C_API(result, name, arguments): see tensorflow/c/{tf_status,tf_tensor,ops,kernels}.h.
#define AMANDA_TENSORFLOW_C_API(DO)                                                                                  \
  DO(TF_Status*, TF_NewStatus, (void))                                                                               \
  DO(void, TF_DeleteStatus, (TF_Status*))                                                                            \
  DO(void, TF_SetStatus, (TF_Status*, int code, const char* message))                                                \
  DO(int, TF_GetCode, (const TF_Status*))                                                                            \
  DO(const char*, TF_Message, (const TF_Status*))                                                                    \
  DO(TF_Tensor*, TF_AllocateTensor, (DataType, const int64_t* sizes, int rank, size_t bytes))                        \
  DO(void, TF_DeleteTensor, (TF_Tensor*))                                                                            \
  DO(DataType, TF_TensorType, (const TF_Tensor*))                                                                    \
  DO(int, TF_NumDims, (const TF_Tensor*))                                                                            \
  DO(int64_t, TF_Dim, (const TF_Tensor*, int))                                                                       \
  DO(size_t, TF_TensorByteSize, (const TF_Tensor*))                                                                  \
  DO(void*, TF_TensorData, (const TF_Tensor*))                                                                       \
  DO(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                                              \
  DO(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                    \
  DO(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                   \
  DO(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                  \
  DO(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                     \
  DO(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                                          \
     (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                                     \
  DO(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  DO(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                         \
  DO(TF_KernelBuilder*, TF_NewKernelBuilder,                                                                         \
     (const char* op, const char* device, void* (*)(TF_OpKernelConstruction*), void (*)(void*, TF_OpKernelContext*), \
      void (*)(void*)))                                                                                              \
  DO(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                   \
  DO(void, TF_OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))      \
  DO(void, TF_OpKernelConstruction_GetAttrSize,                                                                      \
     (TF_OpKernelConstruction*, const char*, int32_t* list_size, int32_t* total_size, TF_Status*))                   \
  DO(void, TF_OpKernelConstruction_GetAttrTypeList,                                                                  \
     (TF_OpKernelConstruction*, const char*, DataType*, int most, TF_Status*))                                       \
  DO(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                  \
  DO(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                         \
  DO(void, TF_SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                   \
  DO(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                            \
  DO(int64_t, TF_GetStepId, (TF_OpKernelContext*))                                                                   \
  DO(uint64_t, TF_GetFrameId, (TF_OpKernelContext*))                                                                 \
  DO(int64_t, TF_GetIterId, (TF_OpKernelContext*))

/// Pointers to these functions. Null for a function that is missing.
struct CApi {
#define AMANDA_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  AMANDA_TENSORFLOW_C_API(AMANDA_DECLARE)
#undef AMANDA_DECLARE
  std::vector<std::string> missing;
};

/// The functions of the TensorFlow in this process. Null if none is loaded yet.
const CApi* find_c_api();
/// The same for code that TensorFlow calls: TensorFlow is then loaded.
const CApi& c_api();

/// A status that this thread uses again and again: each function sets it.
TF_Status* status_here();
/// Throws `Error` with TensorFlow's message if the last function failed.
void check_status(const char* what);

}  // namespace amanda::tensorflow
