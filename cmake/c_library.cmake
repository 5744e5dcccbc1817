# musl has no PyTorch, and no glibc's symbol versions. The compiler knows which C library it compiles for.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_ARG1} -dM -E -x c++ -include features.h /dev/null
                OUTPUT_VARIABLE macros ERROR_QUIET)
if(NOT macros MATCHES "#define __GLIBC__ ")
  message(FATAL_ERROR "[build] ${CMAKE_CXX_COMPILER} compiles for another C library than glibc, such as musl of Alpine Linux; "
                      "PyTorch's packages and Amanda need glibc: build on Debian, Ubuntu, Fedora or a similar system.")
endif()
