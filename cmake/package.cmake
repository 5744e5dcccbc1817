# What `find_package(amanda)` finds.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/amanda)
install(EXPORT amanda-targets NAMESPACE amanda:: DESTINATION ${config_dir})
if(AMANDA_BUILD_TORCH)
  install(EXPORT amanda-torch-targets NAMESPACE amanda:: DESTINATION ${config_dir}
          FILE amanda-torch-${AMANDA_TORCH_MINOR}-targets.cmake)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/amanda-config.cmake.in ${PROJECT_BINARY_DIR}/amanda-config.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/amanda-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/amanda-config.cmake ${PROJECT_BINARY_DIR}/amanda-config-version.cmake
        DESTINATION ${config_dir})
