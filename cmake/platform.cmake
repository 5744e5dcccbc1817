# The systems that a build is for; it is included before any compiler is looked for.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "[build] Amanda runs on Linux only, and this is ${CMAKE_SYSTEM_NAME}; build it in a container or a virtual "
                      "machine with Linux and glibc.")
endif()
