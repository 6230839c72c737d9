//==============================================================================
//
//  Copyright (c) 2020-2023 Qualcomm Technologies, Inc.
//  All Rights Reserved.
//  Confidential and Proprietary - Qualcomm Technologies, Inc.
//
//==============================================================================

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "QnnInterface.h"

#define VALIDATE(res, value) \
   do { \
      if (res == 0 || res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
      { \
         res = value; \
         if (res != 0) \
         { \
            if (res == QNN_COMMON_ERROR_NOT_SUPPORTED) \
            { \
               printf("WARNING! Line %d QNN feature/API not supported\n", __LINE__); \
            } else { \
               printf("ERROR! Line %d with error value: %d\n", __LINE__, (unsigned int)error); \
            } \
         } \
      } \
   } \
   while(0)

int main(int argc, char** argv) {
   Qnn_ErrorHandle_t error = 0;
   QnnLog_Level_t logLevel = QNN_LOG_LEVEL_ERROR;
   int logging = 0;
   for (int i = 1; i < argc; i++) {
     char* arg = argv[i];
     if (!strcmp("--logging", arg) || !strcmp("-l", arg)) {
       logging = 1;
       if (i+1 == argc) {
         printf("No log level provided, defaulting to QNN_LOG_LEVEL_ERROR\n");
         break;
       }
       char* value = argv[++i];
       if (!strcmp("error", value)) {
         logLevel = QNN_LOG_LEVEL_ERROR;
       } else if (!strcmp("warn", value)) {
         logLevel = QNN_LOG_LEVEL_WARN;
       } else if (!strcmp("info", value)) {
         logLevel = QNN_LOG_LEVEL_INFO;
       } else if (!strcmp("debug", value)) {
         logLevel = QNN_LOG_LEVEL_DEBUG;
       } else if (!strcmp("verbose", value)) {
         logLevel = QNN_LOG_LEVEL_VERBOSE;
       } else {
         printf("WARNING: Unknown log level provided: %s, defaulting to QNN_LOG_LEVEL_ERROR\n", value);
       }
     } else {
       printf("Usage: %s [options]\n\n"
              "-l <level>, --logging <level>      Enable logging, acceptable levels are: error,warn,info,debug,verbose\n", argv[0]);
       return -1;
     }
   }

   FILE* fp = fopen("params.bin", "rb");
   if (!fp) {
     error = -1;
     printf("ERROR! Could not open params.bin, ensure this file is in the current working directory when executing this program.\n");
     return error;
   }

   const QnnInterface_t** providerList = NULL;
   uint32_t numProviders;
   VALIDATE(error, QnnInterface_getProviders(&providerList, &numProviders));
   QNN_INTERFACE_VER_TYPE interface = providerList[0]->QNN_INTERFACE_VER_NAME;

   Qnn_LogHandle_t loghandle= NULL;
   if (logging) {
     VALIDATE(error, interface.logCreate(NULL, logLevel, &loghandle));
   }

   const QnnBackend_Config_t* backend_0_config_0[] = {NULL};
   Qnn_BackendHandle_t backend_0;
   VALIDATE(error, interface.backendCreate(loghandle, backend_0_config_0, &backend_0));

   VALIDATE(error, interface.propertyHasCapability((QnnProperty_Key_t)1501));

   const QnnDevice_Config_t* device_0_config_0[] = {NULL};
   Qnn_DeviceHandle_t device_0;
   VALIDATE(error, interface.deviceCreate(loghandle, device_0_config_0, &device_0));

   const QnnContext_Config_t* context_0_config_0[] = {NULL};
   Qnn_ContextHandle_t context_0;
   VALIDATE(error, interface.contextCreate(backend_0, device_0, context_0_config_0, &context_0));

   Qnn_Param_t* Mul0_0_params = NULL;
   uint32_t Mul0_0_input_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t Mul0_0_input_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t Mul0_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Mul0_0_input_0_v1 = {0, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)562, Mul0_0_input_0_quantizeParams, 2, Mul0_0_input_0_dims, (Qnn_TensorMemType_t)0, Mul0_0_input_0_clientBuf};
   Qnn_Tensor_t Mul0_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_0_input_0_v1};

   uint32_t Mul0_0_input_1_dims[] = {1};
   Qnn_QuantizeParams_t Mul0_0_input_1_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static float Mul0_0_input_1_data[1];
   fread(Mul0_0_input_1_data, 4, 1, fp);
   Qnn_ClientBuffer_t Mul0_0_input_1_clientBuf = {(void*)Mul0_0_input_1_data, 4};
   Qnn_TensorV1_t Mul0_0_input_1_v1 = {0, "factor", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)562, Mul0_0_input_1_quantizeParams, 1, Mul0_0_input_1_dims, (Qnn_TensorMemType_t)0, Mul0_0_input_1_clientBuf};
   Qnn_Tensor_t Mul0_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_0_input_1_v1};

   Qnn_Tensor_t Mul0_0_inputs[] = {Mul0_0_input_0, Mul0_0_input_1};
   uint32_t Mul0_0_output_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t Mul0_0_output_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t Mul0_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Mul0_0_output_0_v1 = {0, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)562, Mul0_0_output_0_quantizeParams, 2, Mul0_0_output_0_dims, (Qnn_TensorMemType_t)0, Mul0_0_output_0_clientBuf};
   Qnn_Tensor_t Mul0_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_0_output_0_v1};

   Qnn_Tensor_t Mul0_0_outputs[] = {Mul0_0_output_0};
   Qnn_OpConfigV1_t Mul0_0_v1 = {"Mul0", "qti.aisw", "ElementWiseMultiply", 0, Mul0_0_params, 2, Mul0_0_inputs, 1, Mul0_0_outputs};
   Qnn_OpConfig_t Mul0_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Mul0_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Mul0_0));

   Qnn_Param_t* Mul0_2_0_params = NULL;
   uint32_t Mul0_2_0_input_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t Mul0_2_0_input_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t Mul0_2_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Mul0_2_0_input_0_v1 = {0, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)562, Mul0_2_0_input_0_quantizeParams, 2, Mul0_2_0_input_0_dims, (Qnn_TensorMemType_t)0, Mul0_2_0_input_0_clientBuf};
   Qnn_Tensor_t Mul0_2_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_2_0_input_0_v1};

   uint32_t Mul0_2_0_input_1_dims[] = {1};
   Qnn_QuantizeParams_t Mul0_2_0_input_1_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static float Mul0_2_0_input_1_data[1];
   fread(Mul0_2_0_input_1_data, 4, 1, fp);
   Qnn_ClientBuffer_t Mul0_2_0_input_1_clientBuf = {(void*)Mul0_2_0_input_1_data, 4};
   Qnn_TensorV1_t Mul0_2_0_input_1_v1 = {0, "factor", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)562, Mul0_2_0_input_1_quantizeParams, 1, Mul0_2_0_input_1_dims, (Qnn_TensorMemType_t)0, Mul0_2_0_input_1_clientBuf};
   Qnn_Tensor_t Mul0_2_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_2_0_input_1_v1};

   Qnn_Tensor_t Mul0_2_0_inputs[] = {Mul0_2_0_input_0, Mul0_2_0_input_1};
   uint32_t Mul0_2_0_output_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t Mul0_2_0_output_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t Mul0_2_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t Mul0_2_0_output_0_v1 = {0, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)562, Mul0_2_0_output_0_quantizeParams, 2, Mul0_2_0_output_0_dims, (Qnn_TensorMemType_t)0, Mul0_2_0_output_0_clientBuf};
   Qnn_Tensor_t Mul0_2_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = Mul0_2_0_output_0_v1};

   Qnn_Tensor_t Mul0_2_0_outputs[] = {Mul0_2_0_output_0};
   Qnn_OpConfigV1_t Mul0_2_0_v1 = {"Mul0_2", "qti.aisw", "ElementWiseMultiply", 0, Mul0_2_0_params, 2, Mul0_2_0_inputs, 1, Mul0_2_0_outputs};
   Qnn_OpConfig_t Mul0_2_0 = {(Qnn_OpConfigVersion_t)1, .v1 = Mul0_2_0_v1};
   VALIDATE(error, interface.backendValidateOpConfig(backend_0, Mul0_2_0));

   const QnnGraph_Config_t* context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_config_0[] = {NULL};
   Qnn_GraphHandle_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0;
   VALIDATE(error, interface.graphCreate(context_0, "QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0", context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_config_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_v1 = {0, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_dims[] = {2, 4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_v1 = {0, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1));

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_dims[] = {1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static float context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_data[1];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_data, 4, 1, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_data, 4};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_v1 = {0, "factor", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2_v1};
   VALIDATE(error, interface.tensorCreateGraphTensor(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0, &context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2));

   Qnn_Param_t* context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_params = NULL;
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_0.v1.id, "x", (Qnn_TensorType_t)0, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0_v1};

   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_dims[] = {1};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   static float context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_data[1];
   fread(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_data, 4, 1, fp);
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_clientBuf = {(void*)context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_data, 4};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_2.v1.id, "factor", (Qnn_TensorType_t)4, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_quantizeParams, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_inputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_input_1};
   uint32_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_dims[] = {2, 4};
   Qnn_QuantizeParams_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_quantizeParams = {(Qnn_Definition_t)2147483647, (Qnn_QuantizationEncoding_t)2147483647, .scaleOffsetEncoding = {0.0, 0}};
   Qnn_ClientBuffer_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_clientBuf = {NULL, 0};
   Qnn_TensorV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_v1 = {context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_tensor_1.v1.id, "y", (Qnn_TensorType_t)1, 0, (Qnn_DataType_t)562, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_quantizeParams, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_dims, (Qnn_TensorMemType_t)0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_clientBuf};
   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0 = {(Qnn_TensorVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0_v1};

   Qnn_Tensor_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_outputs[] = {context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_output_0};
   Qnn_OpConfigV1_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_v1 = {"Mul0", "qti.aisw", "ElementWiseMultiply", 0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_params, 2, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_inputs, 1, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_outputs};
   Qnn_OpConfig_t context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0 = {(Qnn_OpConfigVersion_t)1, .v1 = context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0_v1};
   VALIDATE(error, interface.graphAddNode(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0, context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0_Mul0_0));

   VALIDATE(error, interface.graphFinalize(context_0_QNNExecutionProvider_QNNExecutionProvider_6203536985648583671_1_0, NULL, NULL));

   VALIDATE(error, interface.contextFree(context_0, NULL));

   VALIDATE(error, interface.deviceFree(device_0));

   VALIDATE(error, interface.backendFree(backend_0));

   if (logging) {
     VALIDATE(error, interface.logFree(loghandle));
   }

   if (fclose(fp)) error = -1;
   return error == 0 || error == QNN_COMMON_ERROR_NOT_SUPPORTED ? 0 : error;
}
