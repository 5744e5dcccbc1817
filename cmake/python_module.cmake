# Makes an extension module a part of the Python package.
function(amanda_python_module module)
  amanda_lasting_new(${module})
  set_target_properties(${module} PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  install(TARGETS ${module} LIBRARY DESTINATION ${AMANDA_PACKAGE_DIR})
endfunction()
